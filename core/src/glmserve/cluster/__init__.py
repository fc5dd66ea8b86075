"""How ranks on one machine or several reach each other: collectives, control messages, processes, faults."""
