"""`python -m zhcedge` is `zhc-edge`."""

from zhcedge.cli import run_and_leave

if __name__ == "__main__":
    run_and_leave()
