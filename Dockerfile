# finflow in a container:
#   docker build -t finflow .
#   docker run --rm -v "$PWD/logs:/home/finflow/logs" finflow                      the demo
#   docker run --rm -v "$PWD/logs:/home/finflow/logs" finflow --mode train         the whole training, with any other options
# torch comes with CUDA unless the build names the index of its builds for processors:
#   docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu -t finflow .
FROM python:3.11-slim

ARG TORCH_INDEX=https://pypi.org/simple

WORKDIR /src
COPY constraints.txt pyproject.toml setup.py README.md LICENSE ./
COPY finflow finflow
COPY configs configs
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c constraints.txt .

WORKDIR /home/finflow
ENTRYPOINT ["finflow"]
CMD ["--mode", "demo"]
