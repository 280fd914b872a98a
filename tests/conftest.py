"""What every test starts from."""

import signal

# A shell that starts a command in the background makes it deaf to Ctrl-C, and every process below it. Tests press it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
