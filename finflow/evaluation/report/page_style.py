"""The style sheet of the report: light and dark, phone and paper, with figures on a neutral card in all of them."""

STYLE = """
:root{--ink:#1c1e21;--soft:#5c6370;--paper:#fbfbfa;--card:#fff;--line:#e2e3e6;--accent:#0072b2;--mark:#eef5fa;
--ahead:#009e73;--behind:#d55e00;--unclear:#8c8c8c}
@media (prefers-color-scheme:dark){:root{--ink:#e8e9ec;--soft:#a3a9b5;--paper:#15171a;--card:#1e2125;--line:#34383f;
--accent:#56b4e9;--mark:#1b2a36}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;overflow-wrap:anywhere}
main{max-width:66rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .3rem}
h2{font-size:1.2rem;margin:0 0 .7rem}
h3{font-size:.95rem;margin:1.2rem 0 .5rem}
section{margin:2.6rem 0 0;scroll-margin-top:1rem}
p{margin:.4rem 0}
a{color:var(--accent)}
.window,.caption,figcaption{color:var(--soft);font-size:.9rem}
.finding{background:var(--card);border:1px solid var(--line);border-left:6px solid var(--unclear);border-radius:8px;
padding:1.1rem 1.3rem;margin-top:1.4rem}
.finding.ahead{border-left-color:var(--ahead)}
.finding.behind{border-left-color:var(--behind)}
.finding h2{font-size:1.4rem;line-height:1.25;margin-bottom:.4rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(7.6rem,1fr));gap:.9rem 1.2rem;margin-top:1.1rem;
padding-top:1rem;border-top:1px solid var(--line)}
.tiles div{display:flex;flex-direction:column}
.tiles div>span,.tiles small{color:var(--soft);font-size:.85rem}
.tiles b{font-size:1.5rem;line-height:1.3;font-variant-numeric:tabular-nums}
nav,.links{display:flex;flex-wrap:wrap;gap:.35rem 1.1rem;font-size:.9rem}
nav{margin-top:1.3rem}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;background:var(--card)}
.scroll:focus-visible,a:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .6rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:normal}
td{white-space:nowrap}
td.range{white-space:normal;min-width:5.2rem}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
th:first-child{text-align:left;position:sticky;left:0;background:var(--card);font-weight:500;white-space:nowrap}
tbody tr:last-child>*{border-bottom:0}
tr.agent>*{background:var(--mark);font-weight:650}
td small{display:block;white-space:nowrap;color:var(--soft);font-weight:400;font-size:.78rem}
figure{margin:0}
.plot{background:#fff;padding:.6rem}
.plot img{display:block;width:100%;height:auto;min-width:34rem}
figcaption{margin-top:.5rem}
dl{margin:0;border:1px solid var(--line);border-radius:8px;background:var(--card);font-size:.9rem}
dl div{display:grid;grid-template-columns:minmax(8rem,15rem) 1fr;gap:.2rem 1rem;padding:.45rem .9rem;
border-bottom:1px solid var(--line)}
dl div:last-child{border-bottom:0}
dt{color:var(--soft)}
dd{margin:0}
ul{margin:.3rem 0;padding-left:1.2rem}
li{margin:.25rem 0}
.reasons{list-style:none;padding:0}
.scroll+.scroll{margin-top:1rem}
@media (prefers-color-scheme:dark){.plot{background:#f3f3f1}.plot img{mix-blend-mode:multiply}}
@media (max-width:60rem){td small{white-space:normal}}
@media (max-width:40rem){main{padding:1.2rem .9rem 3rem}h1{font-size:1.4rem}section{margin-top:2rem}
dl div{grid-template-columns:1fr}th:first-child{white-space:normal;min-width:6.5rem;max-width:8.5rem}
.plot img{min-width:30rem}}
@media print{:root{--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#ccc;--accent:#0072b2;--mark:#eef5fa}
body{font-size:10.5pt}main{max-width:none;padding:0}nav,#files{display:none}a{color:inherit}
.scroll{overflow:visible;border:0}.plot{background:#fff;padding:0}.plot img{min-width:0;mix-blend-mode:normal}
table{font-size:7.5pt}td small{font-size:6.5pt}
th,td{padding:.25rem .3rem}th:first-child,td,td small{white-space:normal}td.range{min-width:0}
figure,.finding,tr,dl div{break-inside:avoid}h2,h3{break-after:avoid}}
"""
