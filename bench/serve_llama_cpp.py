"""llama.cpp's own server, as the wheel xllamacpp brings it: python serve_llama_cpp.py GGUF THREADS STREAMS CONTEXT"""

import signal
import sys

import xllamacpp


def main(gguf: str, threads: str, streams: str, context: str) -> None:
    """Serve on a free port, print the address, and end at SIGTERM. `context` tokens for each of `streams` slots.

    All else is left as llama.cpp has it: no speculation, float16 KV, continuous batching, mapped weights that it
    repacks for the processor as it loads them.
    """
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = int(streams)
    params.n_ctx = int(streams) * int(context)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
