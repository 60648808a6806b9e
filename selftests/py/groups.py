# SPDX-License-Identifier: GPL-2.0
"""Link groups by way of smcctl: for suites that want every connection to be a first contact."""

import json

import nl
from suite import run, wait_for


def smcctl(*words, space=None, check=True):
    with nl.inside(space):
        return run("smcctl", *words, check=check)


def groups():
    return json.loads(smcctl("--json", "groups"))["groups"]


def no_groups():
    """The next connection is a first contact."""
    for group in groups():
        smcctl("drain", "--group", group["id"], check=False)
    wait_for(lambda: not groups(), 60)
