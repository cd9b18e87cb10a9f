"""For those who write publishers: the suite that every publisher must pass.

from relay.testing import PublisherRig, PublisherConformance

class TestMine(PublisherConformance):
    @pytest.fixture
    def rig(self):
        ...
"""

from relay.testing.conformance import PublisherConformance
from relay.testing.events import make_event
from relay.testing.rig import PublisherRig, Received

__all__ = ["PublisherConformance", "PublisherRig", "Received", "make_event"]
