from hypothesis import settings

# A loaded machine is slow now and then; that is no fault of a decision.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
