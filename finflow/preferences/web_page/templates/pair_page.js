// Buttons and keys send an act; the server answers with the next question, or says what is wrong.
const keys = {ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie", s: "skip", u: "undo"};
const message = document.getElementById("message");
let busy = false;

const say = (text) => {
  message.textContent = text;
  message.hidden = !text;
};

const send = async (act) => {
  const button = document.querySelector(`[data-act="${act}"]`);
  if (busy || button.disabled) return;
  busy = true;
  const question = JSON.parse(document.getElementById("state").dataset.question);
  try {
    const reply = await fetch("/answer", {
      method: "POST",
      headers: {"Content-Type": "application/json", "X-Finflow-Token": document.body.dataset.token},
      body: JSON.stringify({question, act}),
    });
    const found = await reply.json();
    if (found.html) document.getElementById("question").innerHTML = found.html;
    say(found.error || "");
  } catch {
    say("The server does not answer: it was stopped. All answers so far are in the file.");
  } finally {
    busy = false;
  }
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) send(button.dataset.act);
});
document.addEventListener("keydown", (event) => {
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  send(act);
});
