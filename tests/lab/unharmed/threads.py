"""Trains in a thread, beside a daemon that never ends, and prints from both."""

import threading
import time

from loop import trained

losses = []
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
training = threading.Thread(target=lambda: losses.append(trained()))
training.start()
training.join()
print(losses, threading.active_count())
