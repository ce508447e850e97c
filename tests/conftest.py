"""What holds for every test: none fails for being slow on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile("advisor", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("advisor")
