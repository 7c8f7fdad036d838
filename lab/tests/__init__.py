"""Truth tests: recordings made here or in a guest (`acts`), judged on this machine (`truth`)."""
