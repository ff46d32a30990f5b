"""llama.cpp's own HTTP server out of the xllamacpp package, behind llama-server's command line.

Answers for: a drop-in child process on boxes whose CPU cannot run the prebuilt llama-server. It
ignores the flags it does not know, and it may not import anything of llmgw.

    python xllama_serve.py -m MODEL --port P [--host H -a ALIAS -c N -np N -t N --api-key K]
                           [--embedding] [--no-warmup]
"""

import argparse
import signal
import threading

import xllamacpp


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-a", "--alias")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("-c", "--ctx-size", type=int, default=2048)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--api-key")
    parser.add_argument("--embedding", "--embeddings", action="store_true")
    parser.add_argument("--no-warmup", action="store_true")
    known, _ignored = parser.parse_known_args()
    return known


def parameters(asked: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = asked.model
    params.hostnames = [asked.host]
    params.port = asked.port
    params.n_ctx = asked.ctx_size
    params.n_parallel = asked.parallel
    params.endpoint_metrics = True
    params.endpoint_slots = True
    params.warmup = not asked.no_warmup
    if asked.alias:
        params.model_alias = {asked.alias}
    if asked.threads:
        params.cpuparams.n_threads = asked.threads
        params.cpuparams_batch.n_threads = asked.threads
    if asked.api_key:
        params.api_keys = [asked.api_key]
    if asked.embedding:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params


def main() -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = xllamacpp.Server(parameters(options()))  # /health: 503 while it loads, then 200
    print("listening on", server.listening_address, flush=True)
    stop.wait()


if __name__ == "__main__":
    main()
