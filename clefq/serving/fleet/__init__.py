"""Engines behind one port: their processes, who gets the next prompt, what happens when one dies.

Each engine is a process of its own (`worker`) that holds one vLLM `AsyncLLM`, whose core is in
turn a child of that process. The front process never imports vLLM:

- an engine's GPUs and threads are set in its environment, before anything reads them, and engines
  start side by side; several `AsyncLLM` in one process would have to take turns at `os.environ`;
- preparing images, and whatever vLLM does between steps, cannot hold up the event loop that
  answers HTTP;
- an engine that has failed is replaced as a whole, with its process group: no socket, thread or
  cache of it stays behind, however often that happens.

The price is one hop over a local socket: a prompt of 1,000 tokens and its logits take well below
a millisecond.
"""
