"""cuBLASLt: its algorithms as configs of a kernel."""
