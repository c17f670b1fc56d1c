"""Run by a Python that has Home Assistant, never by ours: judges discovery payloads by its own schemas.

Reads {"payloads": [...], "said": {topic: payload as text}} as JSON from standard input. Writes a JSON list with, for
each payload, what its templates make of the messages: {component: {"value", "attributes", "available"}}, null where
there is none. Components that are being removed are left out. Ends with a traceback where Home Assistant would refuse
something.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import tempfile

from homeassistant.components.mqtt.discovery import SHARED_OPTIONS
from homeassistant.components.mqtt.schemas import DEVICE_DISCOVERY_SCHEMA
from homeassistant.core import HomeAssistant
from homeassistant.helpers import frame
from homeassistant.helpers.template import Template


def values(hass: HomeAssistant, payload: dict, said: dict[str, str]) -> dict[str, dict]:
    """As its discovery.py goes through a device's message: the whole, then each component with the shared options."""
    DEVICE_DISCOVERY_SCHEMA(payload)
    found = {}
    for key, component in payload["components"].items():
        platform = component.pop("platform")
        if not component:
            continue  # is being removed
        for option in SHARED_OPTIONS:
            if option in payload and option not in component:
                component[option] = payload[option]
        component["device"], component["origin"] = payload["device"], payload["origin"]
        schema = importlib.import_module(f"homeassistant.components.mqtt.{platform}").DISCOVERY_SCHEMA
        ignored = component.keys() - schema(component).keys()
        if ignored:
            raise SystemExit(f"{key}: Home Assistant ignores {sorted(ignored)}")
        found[key] = {
            "value": _render(hass, component, "state_topic", "value_template", said),
            "attributes": _render(hass, component, "json_attributes_topic", "json_attributes_template", said),
            "available": [_render(hass, one, "topic", "value_template", said) for one in component["availability"]],
        }
    return found


def _render(hass: HomeAssistant, config: dict, topic: str, template: str, said: dict[str, str]) -> str | None:
    text = said.get(config.get(topic, ""))
    if text is None or template not in config:
        return text
    return Template(config[template], hass).async_render_with_possible_json_value(text, parse_result=False)


async def main() -> None:
    request = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        hass = HomeAssistant(folder)
        frame.async_setup(hass)
        json.dump([values(hass, payload, request["said"]) for payload in request["payloads"]], sys.stdout)


asyncio.run(main())
