"""`python -m clefq`: the same as the command `clefq`."""

from clefq.cli.main import run

if __name__ == "__main__":
    run()
