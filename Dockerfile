# The library, its command and its demo:
#   docker build --tag jaxport .
#   docker run --rm jaxport                                    # the demo
#   docker run --rm jaxport make test
#   docker run --rm --volume "$PWD:/models" jaxport jaxport inspect /models/model.onnx
FROM python:3.11-slim

RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /jaxport

# The dependencies change less often than the code: a layer of their own.
COPY Makefile pyproject.toml README.md LICENSE ./
COPY src/jaxport/__init__.py src/jaxport/
RUN make env

COPY . .
ENV PATH="/jaxport/.venv/bin:$PATH" JAX_PLATFORMS=cpu
CMD ["make", "demo"]
