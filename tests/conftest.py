"""For all tests: a property holds or it does not; how long an example takes on a busy machine says nothing."""

import hypothesis

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
