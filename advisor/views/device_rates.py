"""Peak rates of the recorded devices: by the user, by the table of known devices, or estimated by generation."""

from __future__ import annotations

import msgspec

from advisor.knowledge.devices import Peaks, of_device, same_device
from advisor.recordings.timeline import Device


class DeviceRates(msgspec.Struct, frozen=True):
    """own: rates that the user gave, in `[tool.advisor.devices]`; they go before all that is known."""

    own: tuple[Peaks, ...] = ()

    def peaks_of(self, device: Device) -> Peaks | None:
        """The device's rates; None if neither its name nor its generation is known."""
        return self.named(device.name) or of_device(device.name, device.compute_capability, device.sm_count)

    def named(self, name: str) -> Peaks | None:
        """The rates that the user gave for a device of that name."""
        return next((peaks for peaks in self.own if any(same_device(name, known) for known in peaks.names)), None)

    @classmethod
    def build(cls) -> DeviceRates:
        """Rates without the user's."""
        return cls()
