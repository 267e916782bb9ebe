# The trainer's side: PyTorch, sparsecast, and the programs around a training loop. Only wheels: no compiler, no sources.
#
#   scripts/wheel.sh --python PYTHON3.12 && docker build -f docker/trainer.Dockerfile -t sparsecast-trainer .
#   docker run --gpus all --network host -v "$PWD":/work sparsecast-trainer train.py         # a training script of yours
#   docker run sparsecast-trainer -m sparsecast.control --help                               # the control plane
#   docker run --entrypoint sparsecast sparsecast-trainer doctor                             # the command
ARG BASE=python:3.12-slim
FROM ${BASE}

# Where pip finds torch: PyPI's is that for CUDA. For a trainer without a GPU name an index of CPU builds.
ARG TORCH=torch>=2.11
ARG PIP_EXTRA_INDEX_URL=

RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates \
 && rm -rf /var/lib/apt/lists/*

# Torch first: a layer that a new wheel of ours does not touch.
RUN pip install --no-cache-dir "${TORCH}" numpy safetensors

# Ours from the file alone, whatever an index may have under that name; then what the extras need.
COPY dist/*.whl /tmp/wheels/
RUN pip install --no-cache-dir --no-index --find-links /tmp/wheels sparsecast \
 && pip install --no-cache-dir 'sparsecast[torch,record,control]' \
 && rm -rf /tmp/wheels \
 && sparsecast --version

WORKDIR /work
ENTRYPOINT ["python3"]
