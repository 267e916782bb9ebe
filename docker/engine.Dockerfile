# The engine's side: a released inference server, and sparsecast beside it, which the server finds by its own plug-ins.
#
#   scripts/wheel.sh --python PYTHON3.12 && docker build -f docker/engine.Dockerfile -t sparsecast-engine .
#   docker run --gpus all --network host --ipc host -e SPARSECAST_SECRET sparsecast-engine \
#       --model MODEL --weight-transfer-config '{"backend": "sparsecast"}'
#   docker run --entrypoint sparsecast sparsecast-engine log follow s3://bucket/run /model   # a follower of a delta log
#
# SGLang instead: --build-arg BASE=lmsysorg/sglang:v0.5.23; its entry point is none, so give the command:
#   docker run --gpus all --network host sparsecast-engine python3 -m sglang.launch_server --model-path MODEL
ARG BASE=vllm/vllm-openai:v0.33.0
FROM ${BASE}

# The server's own torch stays: nothing but sparsecast is installed, and it depends on nothing.
COPY dist/*.whl /tmp/wheels/
RUN python3 -m pip install --no-cache-dir --no-index --find-links /tmp/wheels sparsecast \
 && rm -rf /tmp/wheels \
 && sparsecast --version

# The entry point is that of the base: `vllm serve` takes the arguments.
