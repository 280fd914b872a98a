"""`labkit doctor`: what this machine has, what works when tried, and what each notebook will do here."""

from labkit.doctor.findings import Finding, Outlook, Report

__all__ = ["Finding", "Outlook", "Report", "examine"]


def examine() -> Report:
    """Look at the software, the device and the course's files. Tries things rather than trusting versions.

    Takes as long as importing torch and bitsandbytes in a second process: several seconds.
    """
    from labkit.doctor import content, hardware, software
    from labkit.doctor.probing import Probes

    with Probes() as probes:  # runs beside the rest
        findings = [*software.findings(), hardware.disk(), *content.weights(), content.notebooks_built()]
        facts = probes.collect()
    tried = hardware.findings(facts) + content.model(facts)
    return Report(tuple(findings[:1] + tried + findings[1:]), tuple(content.outlook(facts)))
