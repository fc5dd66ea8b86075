"""The plan of a run, from configuration and tensor headers alone: what it holds, moves and reads, and whether it fits.

A plan is made before anything is downloaded. `plan.py` puts it together; every other module is one of its subjects.
Bytes are bytes, GiB are 2**30 of them and GB 10**9; "a rank" is one process with one device.
"""
