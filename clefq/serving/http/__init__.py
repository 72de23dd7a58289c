"""The SystemOne protocol over HTTP: bodies, dialects, limits, errors, and the routes themselves.

Engines are behind one protocol (`clefq.serving.http.backend.Backend`): this package never imports
vLLM, and its tests run with a backend that only adds numbers.
"""
