"""`zhc-edge events`: the events of the past, and their totals by the hour."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from zhcedge.cli.arguments import whole_number

_MOST = 1_000_000_000


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "events",
        help="show past events and their hourly totals",
        description="Shows what the daemon has noted of its events, also while it runs; the last minute may not be "
        "there yet. With --totals, by hour, camera, zone or line, and label: objects that came, the seconds that they "
        "were there together, and crossings in and out. A time with ? behind it is one of a clock that was not set. "
        "Nothing is noted without outbox.dir or systemd's $STATE_DIRECTORY.",
    )
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="the daemon's configuration; default: $STATE_DIRECTORY, else /var/lib/zhc-edge",
    )
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="set one value of it"
    )
    when = "90m, 2h or 3d ago, or a local time such as 2026-01-31 or 2026-01-31T18:30"
    parser.add_argument("--since", default="1d", metavar="TIME", help=f"{when}; default: %(default)s")
    parser.add_argument("--until", default="", metavar="TIME", help="the same; default: now")
    parser.add_argument("--camera", metavar="NAME", help="of this camera only")
    parser.add_argument("--label", metavar="LABEL", help="of this label only")
    parser.add_argument("--totals", action="store_true", help="totals by the hour instead of events")
    parser.add_argument(
        "--limit",
        type=lambda text: whole_number(text, 0, _MOST),
        default=0,
        metavar="N",
        help="the newest N lines, 0: all; default 0",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0, also when there was no event."""
    from zhcedge.app import history_view as view
    from zhcedge.app.past_events import EventsQuery, clips_of, past_events, past_totals

    query = EventsQuery(
        config=args.config,
        overrides=args.overrides,
        environ=os.environ,
        since=args.since,
        until=args.until,
        camera=args.camera,
        label=args.label,
        limit=args.limit,
    )
    if args.totals:
        totals = past_totals(query)
        facts = [view.total_facts(key, tally) for key, tally in totals]
        shown = view.table(view.TOTAL_COLUMNS, [view.total_row(key, tally) for key, tally in totals])
    else:
        events = past_events(query)
        facts = [
            {**view.event_facts(event), "clip": view.clip_facts(uses)}
            for event, uses in zip(events, clips_of(query, events), strict=True)
        ]
        shown = view.table(view.EVENT_COLUMNS, [view.event_row(event) for event in events])
    if args.json:
        for one in facts:
            print(json.dumps(one, ensure_ascii=False))
    elif facts:
        print(shown)
    else:
        print("nothing in this time", file=sys.stderr)
    return 0
