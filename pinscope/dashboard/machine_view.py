"""This machine: its GPUs with their links, what works on it, and everything else that is known of it."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard.fact_table import fact_columns, fact_table
from pinscope.dashboard.plain import plain, sentence
from pinscope.probes.capabilities import capabilities
from pinscope.records.environment import Device, Environment, Link
from pinscope.report.device_facts import bus_facts
from pinscope.report.facts import environment_facts, version_text
from pinscope.units import format_bandwidth, format_bytes


def gpu_cards(environment: Environment) -> None:
    """One card a GPU."""
    with st.grid(2 if len(environment.devices) <= 2 else "auto", min_column_width=380):
        for device in environment.devices:
            with st.container(border=True, height="stretch"):
                _gpu(device)


def _gpu(device: Device) -> None:
    link = device.link
    st.markdown(f"**GPU {device.index}: {plain(device.name)}**")
    with st.grid(2, min_column_width=150):
        st.metric("Link at best", _link_text(link, now=False))
        st.metric("It carries at most", format_bandwidth(link.limit_bytes_per_second if link else None))
    unknown = {name: f"n/a ({why})" for name, why in device.missing.items()}
    fact_table(
        [
            ("Link now", _link_now(link) if link else unknown.get("link", "n/a")),
            ("Memory", f"{format_bytes(device.memory_free_bytes)} free of {format_bytes(device.memory_total_bytes)}"),
            ("NUMA node", unknown.get("numa_node", str(device.numa_node))),
            ("Compute capability", unknown.get("compute_capability", str(device.compute_capability))),
            ("PCI address", unknown.get("pci_bus_id", str(device.pci_bus_id))),
            *bus_facts(device),
        ]
    )


def _link_now(link: Link) -> str:
    now = _link_text(link, now=True)
    return now if now in ("n/a", _link_text(link, now=False)) else f"{now} (an idle link trains down)"


def _link_text(link: Link | None, now: bool) -> str:
    """``PCIe Gen5 x16``, as the link is trained ``now`` or at best."""
    if link is None:
        return "n/a"
    if link.kind == "nvlink-c2c":
        return "NVLink-C2C"
    generation = link.generation_now if now else link.generation_max
    width = link.width_now if now else link.width_max
    return "n/a" if generation is None or width is None else f"PCIe Gen{generation} x{width}"


def capability_cards(environment: Environment) -> None:
    """What can be used here, and if not, why not and what to do."""
    with st.grid(min_column_width=380):
        for capability in capabilities(environment):
            with st.container(border=True, height="stretch", gap="xsmall"):
                mark = ":green[:material/check_circle:]" if capability.works else ":gray[:material/cancel:]"
                st.markdown(f"{mark} **{plain(capability.title)}**")
                if capability.reason:
                    st.markdown(plain(sentence(capability.reason)))
                if capability.advice:
                    st.caption(f":material/arrow_forward: {plain(capability.advice)}")


def machine_table(environment: Environment) -> None:
    """Host, limits and software; the GPUs have cards of their own."""
    facts = [fact for fact in environment_facts(environment) if not fact[0].startswith("GPU ")]
    facts.append(("PinScope", version_text(environment)))
    fact_columns(facts)
