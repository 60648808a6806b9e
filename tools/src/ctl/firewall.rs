// SPDX-License-Identifier: GPL-2.0

//! What the firewall of the host, as nft lists it, makes of RoCE packets.
//!
//! A packet of a peer that nobody has heard of before is followed through the chains for incoming
//! packets. Where it depends on more than is known of it, both ways are followed, and the result is that
//! nobody knows.

use super::steps::{Step, Verdict};
use serde_json::{json, Value};

/// Port of UDP that RoCE version 2 uses.
pub(super) const ROCE_PORT: u64 = 4791;

/// A program for rules.
pub(super) struct Program {
    /// The step about it.
    pub(super) step: &'static str,
    /// What its rules are called.
    pub(super) rules: &'static str,
    /// How they are listed.
    pub(super) list: &'static str,
    /// How one is added that lets RoCE packets in.
    pub(super) add: &'static str,
}

/// The one whose lists are judged here.
pub(super) const NFT: Program = Program {
    step: "firewall",
    rules: "nftables",
    list: "nft list ruleset",
    add: "nft add rule ... udp dport 4791 accept",
};

/// The first line of what a program says, fit to be shown.
pub(super) fn first_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    crate::attr::text(said.lines().next().unwrap_or_default().as_bytes())
}

/// How many chains may call each other, which is the kernel's limit as well.
const MAX_DEPTH: usize = 16;

/// Whether a rule is about the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Match {
    Yes,
    No,
    /// It depends on this, or on something that is not understood.
    Perhaps(String),
}

impl Match {
    fn of(yes: bool) -> Self {
        if yes {
            Match::Yes
        } else {
            Match::No
        }
    }

    fn not(self) -> Self {
        match self {
            Match::Yes => Match::No,
            Match::No => Match::Yes,
            perhaps => perhaps,
        }
    }
}

/// What becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It is let in, as far as this hook is concerned.
    Passes,
    /// The caller of the chain goes on.
    Returns,
    /// It is dropped, here.
    Drops(String),
}

/// What is known of a field: nothing (`Any`), that the packet has no such thing, or its value.
enum Known {
    Any,
    Never,
    Value(Value),
}

fn known(left: &Value) -> Known {
    let udp = || Known::Value(json!("udp"));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    if let Some(payload) = left.get("payload") {
        return match (
            text(&payload["protocol"]).as_str(),
            text(&payload["field"]).as_str(),
        ) {
            ("udp" | "th", "dport") => Known::Value(json!(ROCE_PORT)),
            ("ip", "protocol") => udp(),
            (
                "tcp" | "sctp" | "dccp" | "udplite" | "icmp" | "icmpv6" | "igmp" | "arp" | "esp",
                _,
            )
            | ("ah" | "comp", _) => Known::Never,
            _ => Known::Any,
        };
    }
    if let Some(fib) = left.get("fib") {
        // It is for this host, and the peer can be reached.
        return match text(&fib["result"]).as_str() {
            "type" if fib["flags"] == "daddr" || fib["flags"] == json!(["daddr"]) => {
                Known::Value(json!("local"))
            }
            "oif" | "oifname" => Known::Value(json!(true)),
            _ => Known::Any,
        };
    }
    match (
        text(&left["meta"]["key"]).as_str(),
        text(&left["ct"]["key"]).as_str(),
    ) {
        ("l4proto", _) => udp(),
        // RoCE has a port of its own at both ends: nothing is an answer to something.
        (_, "state") => Known::Value(json!("new")),
        (_, "status") => Known::Never,
        _ => Known::Any,
    }
}

/// What an expression is about, in a few words.
fn describe(left: &Value) -> String {
    let Some((kind, inner)) = left.as_object().and_then(|left| left.iter().next()) else {
        return "an expression".into();
    };
    let word = |key: &str| inner[key].as_str().unwrap_or_default().to_string();
    let words = match kind.as_str() {
        "payload" => format!("{} {}", word("protocol"), word("field")),
        "meta" | "ct" => format!("{kind} {}", word("key")),
        "fib" => format!("fib {}", word("result")),
        _ => kind.clone(),
    };
    crate::attr::text(words.trim().as_bytes())
}

/// The chains, and what was met on the way through them that may decide otherwise.
struct Walk<'a> {
    items: &'a [Value],
    /// What may let the packet in.
    accepts: Vec<String>,
    /// What may keep it out, or have another chain do so.
    drops: Vec<String>,
    /// Something was met that could keep it out at all.
    can_drop: bool,
}

/// Table and name as they are shown.
fn place(rule: &Value) -> String {
    let word = |key: &str| rule[key].as_str().unwrap_or_default().to_string();
    let name = if rule["chain"].is_string() {
        word("chain")
    } else {
        word("name")
    };
    let words = format!("{} {} {name}", word("family"), word("table"));
    crate::attr::text(words.as_bytes())
}

impl<'a> Walk<'a> {
    /// What is in the same table, by its kind and name.
    fn named(&self, kind: &str, near: &Value, name: &Value) -> Option<&'a Value> {
        self.items.iter().map(|item| &item[kind]).find(|item| {
            item["family"] == near["family"]
                && item["table"] == near["table"]
                && item["name"] == *name
        })
    }

    /// The elements of a set or map, which may stand elsewhere under a name.
    fn elements(&self, rule: &Value, value: &'a Value) -> Option<&'a [Value]> {
        let list = match value.as_str().and_then(|name| name.strip_prefix('@')) {
            Some(name) => {
                let name = json!(name);
                let found = ["set", "map"]
                    .iter()
                    .find_map(|kind| self.named(kind, rule, &name))?;
                return match &found["elem"] {
                    Value::Null => Some(&[]),
                    elements => elements.as_array().map(Vec::as_slice),
                };
            }
            None => value.get("set").unwrap_or(value),
        };
        list.as_array().map(Vec::as_slice)
    }

    /// Whether a value is another one, or among others.
    fn is(&self, rule: &Value, value: &Value, right: &'a Value, about: &str) -> Match {
        let perhaps = || Match::Perhaps(about.to_string());
        if let Some(element) = right.get("elem") {
            return self.is(rule, value, &element["val"], about);
        }
        if let Some(bounds) = right.get("range") {
            let bound = |place: usize| bounds[place].as_u64();
            return match (value.as_u64(), bound(0), bound(1)) {
                (Some(value), Some(first), Some(last)) => {
                    Match::of((first..=last).contains(&value))
                }
                _ => perhaps(),
            };
        }
        if right.is_array() || right.get("set").is_some() || is_reference(right) {
            let Some(elements) = self.elements(rule, right) else {
                return perhaps();
            };
            let mut best = Match::No;
            for element in elements {
                match self.is(rule, value, element, about) {
                    Match::Yes => return Match::Yes,
                    Match::No => {}
                    unsure => best = unsure,
                }
            }
            return best;
        }
        match right {
            // 17 is UDP.
            Value::Number(_) if value == "udp" => Match::of(right.as_u64() == Some(17)),
            Value::Number(_) if value.is_number() => Match::of(right == value),
            Value::String(_) if value.is_string() => Match::of(right == value),
            Value::Bool(_) if value.is_boolean() => Match::of(right == value),
            _ => perhaps(),
        }
    }

    fn matches(&self, rule: &Value, part: &'a Value) -> Match {
        let (left, right) = (&part["left"], &part["right"]);
        let about = describe(left);
        // What comes from a peer does not come over lo.
        let by_interface = ["iif", "iifname"]
            .iter()
            .any(|key| left["meta"]["key"] == *key);
        let equal = match known(left) {
            Known::Any if by_interface && right == "lo" => Match::No,
            Known::Any => Match::Perhaps(about),
            // Another protocol's rule is not about the packet at all; what has no state differs from each.
            Known::Never => return Match::of(left.get("ct").is_some() && part["op"] == "!="),
            Known::Value(value) => {
                let ordered = value.as_u64().zip(right.as_u64());
                match (part["op"].as_str().unwrap_or("=="), ordered) {
                    ("==" | "!=" | "in", _) => self.is(rule, &value, right, &about),
                    ("<", Some((value, bound))) => Match::of(value < bound),
                    ("<=", Some((value, bound))) => Match::of(value <= bound),
                    (">", Some((value, bound))) => Match::of(value > bound),
                    (">=", Some((value, bound))) => Match::of(value >= bound),
                    _ => Match::Perhaps(about),
                }
            }
        };
        if part["op"] == "!=" {
            equal.not()
        } else {
            equal
        }
    }

    /// What a verdict says; `None` if the next rule decides.
    fn verdict(&mut self, rule: &Value, part: &'a Value, depth: usize) -> Option<Fate> {
        let (kind, inner) = part.as_object()?.iter().next()?;
        match kind.as_str() {
            "accept" => Some(Fate::Passes),
            "drop" | "reject" => {
                self.can_drop = true;
                Some(Fate::Drops(format!("a rule in {} drops", place(rule))))
            }
            "return" => Some(Fate::Returns),
            "jump" => Some(self.chain(rule, &inner["target"], depth + 1))
                .filter(|fate| *fate != Fate::Returns),
            "goto" => Some(self.chain(rule, &inner["target"], depth + 1)),
            _ => None,
        }
    }

    /// Notes what may become of the packet instead.
    fn note(&mut self, rule: &Value, fate: Option<Fate>, about: &str) {
        let what = format!("{about} in {}", place(rule));
        let add = |list: &mut Vec<String>| {
            if !list.contains(&what) {
                list.push(what.clone());
            }
        };
        if matches!(fate, Some(Fate::Passes | Fate::Returns)) {
            add(&mut self.accepts);
        }
        if matches!(fate, Some(Fate::Drops(_) | Fate::Returns)) {
            add(&mut self.drops);
        }
    }

    /// A map from values to verdicts.
    fn mapped(&mut self, rule: &Value, map: &'a Value, depth: usize) -> Option<Fate> {
        let about = describe(&map["key"]);
        let value = match known(&map["key"]) {
            Known::Never => return None,
            Known::Value(value) => Some(value),
            Known::Any => None,
        };
        let Some(pairs) = self.elements(rule, &map["data"]) else {
            self.can_drop = true;
            self.note(rule, Some(Fate::Returns), &about);
            return None;
        };
        for pair in pairs {
            let found = match &value {
                Some(value) => self.is(rule, value, &pair[0], &about),
                None => Match::Perhaps(about.clone()),
            };
            match found {
                Match::No => {}
                Match::Yes => return self.verdict(rule, &pair[1], depth),
                Match::Perhaps(about) => {
                    let fate = self.verdict(rule, &pair[1], depth);
                    self.note(rule, fate, &about);
                }
            }
        }
        None
    }

    /// What a rule does; `None` if the next one decides.
    fn rule(&mut self, rule: &'a Value, depth: usize) -> Option<Fate> {
        let mut unsure = None;
        let parts = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
        for part in parts {
            let kind = part.as_object().and_then(|part| part.keys().next());
            let fate = match kind.map_or("", String::as_str) {
                "match" => match self.matches(rule, &part["match"]) {
                    Match::No => return None,
                    Match::Yes => continue,
                    Match::Perhaps(about) => {
                        unsure.get_or_insert(about);
                        continue;
                    }
                },
                "counter" | "log" | "comment" | "mangle" | "notrack" | "set" | "ct helper" => {
                    continue
                }
                "limit" | "quota" | "ct count" => {
                    unsure.get_or_insert(describe(part));
                    continue;
                }
                "vmap" => self.mapped(rule, &part["vmap"], depth),
                "accept" | "drop" | "reject" | "return" | "jump" | "goto" => {
                    self.verdict(rule, part, depth)
                }
                // A statement or condition that is not understood may do anything. (What iptables has as `xt`
                // are conditions, and changes of addresses.)
                other => {
                    self.can_drop |= other != "xt";
                    self.note(rule, Some(Fate::Returns), &describe(part));
                    unsure.get_or_insert(describe(part));
                    continue;
                }
            };
            match &unsure {
                None if fate.is_some() => return fate,
                None => {}
                Some(about) => self.note(rule, fate, about),
            }
        }
        None
    }

    fn chain(&mut self, near: &Value, name: &Value, depth: usize) -> Fate {
        if depth > MAX_DEPTH {
            self.can_drop = true;
            self.note(near, Some(Fate::Returns), "a long way of chains");
            return Fate::Returns;
        }
        let of_chain = |rule: &&'a Value| {
            rule["family"] == near["family"]
                && rule["table"] == near["table"]
                && rule["chain"] == *name
        };
        let rules = self.items.iter().map(|item| &item["rule"]);
        let rules: Vec<_> = rules.filter(of_chain).collect();
        rules
            .into_iter()
            .find_map(|rule| self.rule(rule, depth))
            .unwrap_or(Fate::Returns)
    }
}

/// Whether it is the name of a set.
fn is_reference(value: &Value) -> bool {
    value.as_str().is_some_and(|name| name.starts_with('@'))
}

/// Whether packets from the network meet the chain before a program does.
fn is_incoming(chain: &Value) -> bool {
    let is = |key: &str, values: &[&str]| values.iter().any(|value| chain[key] == *value);
    is("hook", &["ingress", "prerouting", "input"])
        && is("family", &["inet", "ip", "ip6", "netdev"])
}

/// How bad it is if all packets end in a chain, and of which packets that is said: not every RoCE packet meets
/// the chain of one interface, or of IPv6.
fn concerns(chain: &Value) -> (Verdict, String) {
    if !chain["dev"].is_null() {
        let dev = crate::attr::text(chain["dev"].to_string().as_bytes());
        return (Verdict::Warning, format!(" of what comes over {dev}"));
    }
    if chain["family"] == "ip6" {
        return (Verdict::Warning, " of IPv6".into());
    }
    (Verdict::Failure, String::new())
}

/// The first ones of a list.
fn few(list: &[String]) -> String {
    const SHOWN: usize = 3;
    let more = list.len().saturating_sub(SHOWN);
    let shown = list.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Judges one chain, if there is something to say.
fn judge_chain(items: &[Value], chain: &Value, program: &Program) -> Option<Step> {
    let mut walk = Walk {
        items,
        accepts: Vec::new(),
        drops: Vec::new(),
        can_drop: chain["policy"] == "drop",
    };
    let dropped = match walk.chain(chain, &chain["name"], 0) {
        Fate::Drops(place) => Some(place),
        Fate::Returns if chain["policy"] == "drop" => {
            Some(format!("the chain {} by default drops", place(chain)))
        }
        _ => None,
    };
    let name = program.step;
    let advice = format!("let it in, as with `{}`", program.add);
    match dropped {
        Some(place) if walk.accepts.is_empty() => {
            let (verdict, of_what) = concerns(chain);
            let detail = format!("{place} UDP port {ROCE_PORT}{of_what}");
            Some(Step::new(name, verdict, detail).advise(advice))
        }
        Some(place) => {
            let detail = format!(
                "{place} UDP port {ROCE_PORT}, unless this lets it in: {}",
                few(&walk.accepts)
            );
            Some(Step::new(name, Verdict::Warning, detail).advise(advice))
        }
        None if walk.drops.is_empty() || !walk.can_drop => None,
        None => {
            let detail = format!(
                "whether UDP port {ROCE_PORT} is let in depends on {}",
                few(&walk.drops)
            );
            let step = Step::new(name, Verdict::Warning, detail);
            Some(step.advise(format!("see `{}`, for packets of the peers", program.list)))
        }
    }
}

/// Judges what a program lists, in the way of nft.
pub(super) fn judge(ruleset: &Value, program: &Program) -> Step {
    let items = ruleset["nftables"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let chains = items.iter().map(|item| &item["chain"]);
    let steps = chains
        .filter(|chain| is_incoming(chain))
        .filter_map(|chain| judge_chain(items, chain, program));
    steps.max_by_key(|step| step.verdict).unwrap_or_else(|| {
        let detail = format!(
            "nothing in {} keeps UDP port {ROCE_PORT} out",
            program.rules
        );
        Step::new(program.step, Verdict::Pass, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(hook: &str, policy: &str) -> Value {
        json!({"chain": {"family": "inet", "table": "filter", "name": hook, "type": "filter",
                         "hook": hook, "prio": 0, "policy": policy}})
    }

    /// A rule of a chain; the last of its parts is what is done.
    fn rule(chain: &str, parts: &[Value]) -> Value {
        json!({"rule": {"family": "inet", "table": "filter", "chain": chain, "expr": parts}})
    }

    fn is(left: Value, right: Value) -> Value {
        json!({"match": {"op": "==", "left": left, "right": right}})
    }

    fn dport(right: Value) -> Value {
        is(
            json!({"payload": {"protocol": "udp", "field": "dport"}}),
            right,
        )
    }

    fn meta(key: &str, right: Value) -> Value {
        is(json!({"meta": {"key": key}}), right)
    }

    fn ct(right: Value) -> Value {
        is(json!({"ct": {"key": "state"}}), right)
    }

    fn does(what: &str) -> Value {
        json!({what: null})
    }

    fn step(items: &[Value]) -> Step {
        judge(&json!({ "nftables": items }), &NFT)
    }

    fn verdict(items: &[Value]) -> Verdict {
        step(items).verdict
    }

    fn input(policy: &str, parts: &[Value]) -> Verdict {
        verdict(&[base("input", policy), rule("input", parts)])
    }

    #[test]
    fn conditions_alone_keep_nothing_out() {
        // As a container engine has it, and iptables' conditions.
        let docker = [meta("iifname", json!("docker0")), does("return")];
        let foreign = [does("xt"), does("accept")];
        let chain = base("input", "accept");
        assert_eq!(
            verdict(&[
                chain.clone(),
                rule("input", &docker),
                rule("input", &foreign)
            ]),
            Verdict::Pass
        );
        // Unless something behind them does.
        assert_eq!(
            verdict(&[
                chain.clone(),
                rule("input", &docker),
                rule("input", &[does("drop")])
            ]),
            Verdict::Warning
        );
        assert_eq!(input("drop", &docker), Verdict::Warning);
        assert_eq!(input("accept", &[does("queue")]), Verdict::Warning);
    }

    #[test]
    fn some_packets() {
        let mut chain = base("input", "drop");
        chain["chain"]["family"] = json!("ip6");
        let found = step(&[chain]);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.detail.contains("of IPv6"), "{}", found.detail);
        let mut chain = base("ingress", "drop");
        chain["chain"]["dev"] = json!("wan0");
        let found = step(&[chain]);
        assert_eq!(found.verdict, Verdict::Warning);
        assert!(found.detail.contains("wan0"), "{}", found.detail);
    }

    #[test]
    fn what_has_no_state_differs_from_each() {
        let status = |op: &str| json!({"match": {"op": op, "left": {"ct": {"key": "status"}}, "right": "dnat"}});
        assert_eq!(
            input("accept", &[status("!="), does("drop")]),
            Verdict::Failure
        );
        assert_eq!(
            input("accept", &[status("=="), does("drop")]),
            Verdict::Pass
        );
    }

    #[test]
    fn long_lists_are_cut() {
        let list: Vec<_> = (0..5).map(|number| number.to_string()).collect();
        assert_eq!(few(&list), "0, 1, 2 and 2 more");
        assert_eq!(few(&list[..3]), "0, 1, 2");
    }

    #[test]
    fn ports() {
        assert_eq!(verdict(&[]), Verdict::Pass);
        assert_eq!(judge(&json!({"nftables": 7}), &NFT).verdict, Verdict::Pass);
        assert_eq!(verdict(&[base("input", "accept")]), Verdict::Pass);
        assert_eq!(verdict(&[base("input", "drop")]), Verdict::Failure);
        let set = json!({"set": [22, {"range": [4000, 5000]}]});
        for (right, is_meant) in [
            (json!(4791), true),
            (json!(4790), false),
            (set, true),
            (json!({"set": [22, 80]}), false),
            (json!({"range": [1, 4790]}), false),
        ] {
            let accepts = [dport(right.clone()), does("accept")];
            let drops = [dport(right), json!({"counter": {}}), does("drop")];
            let (good, bad) = if is_meant {
                (Verdict::Pass, Verdict::Failure)
            } else {
                (Verdict::Failure, Verdict::Pass)
            };
            assert_eq!(input("drop", &accepts), good, "{accepts:?}");
            assert_eq!(input("accept", &drops), bad, "{drops:?}");
        }
        let mut not = dport(json!(4791));
        not["match"]["op"] = json!("!=");
        assert_eq!(input("accept", &[not, does("drop")]), Verdict::Pass);
    }

    #[test]
    fn protocols() {
        for right in [json!("udp"), json!(17), json!({"set": ["udp", "tcp"]})] {
            let parts = [meta("l4proto", right), does("drop")];
            assert_eq!(input("accept", &parts), Verdict::Failure, "{parts:?}");
        }
        let tcp = [meta("l4proto", json!("tcp")), does("drop")];
        assert_eq!(input("accept", &tcp), Verdict::Pass);
        let of_tcp = is(
            json!({"payload": {"protocol": "tcp", "field": "dport"}}),
            json!(4791),
        );
        assert_eq!(input("drop", &[of_tcp, does("accept")]), Verdict::Failure);
    }

    #[test]
    fn named_sets() {
        let set = |elements: Value| json!({"set": {"family": "inet", "table": "filter", "name": "bad", "elem": elements}});
        let drops = rule("input", &[dport(json!("@bad")), does("drop")]);
        let with = |set: Value| verdict(&[base("input", "accept"), set, drops.clone()]);
        assert_eq!(
            with(set(json!([{"elem": {"val": 4791}}]))),
            Verdict::Failure
        );
        assert_eq!(with(set(json!([80]))), Verdict::Pass);
        assert_eq!(with(set(Value::Null)), Verdict::Pass);
        // One that is not there.
        assert_eq!(with(json!({})), Verdict::Warning);
    }

    #[test]
    fn chains_that_are_called() {
        let call = |kind: &str| rule("input", &[json!({kind: {"target": "more"}})]);
        let drops = rule("more", &[dport(json!(4791)), does("drop")]);
        for kind in ["jump", "goto"] {
            let items = [base("input", "accept"), call(kind), drops.clone()];
            assert_eq!(verdict(&items), Verdict::Failure, "{kind}");
        }
        // What comes after a jump counts; after a goto nothing does.
        let returns = rule("more", &[does("return")]);
        let rest = rule("input", &[does("accept")]);
        for (kind, want) in [("jump", Verdict::Pass), ("goto", Verdict::Failure)] {
            let items = [
                base("input", "drop"),
                call(kind),
                returns.clone(),
                rest.clone(),
            ];
            assert_eq!(verdict(&items), want, "{kind}");
        }
        // In circles.
        let again = rule("more", &[json!({"jump": {"target": "more"}})]);
        assert_eq!(
            verdict(&[base("input", "accept"), call("jump"), again]),
            Verdict::Warning
        );
    }

    #[test]
    fn chains_that_packets_for_this_host_do_not_meet() {
        let drops = |chain: &str| rule(chain, &[dport(json!(4791)), does("drop")]);
        assert_eq!(
            verdict(&[base("input", "accept"), drops("unused")]),
            Verdict::Pass
        );
        for hook in ["forward", "output"] {
            assert_eq!(
                verdict(&[base(hook, "drop"), drops(hook)]),
                Verdict::Pass,
                "{hook}"
            );
        }
        assert_eq!(
            verdict(&[base("prerouting", "accept"), drops("prerouting")]),
            Verdict::Failure
        );
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let about = json!({"payload": {"protocol": "ip", "field": "saddr"}});
        let from = is(about, json!({"prefix": {"addr": "192.0.2.0", "len": 24}}));
        let said = step(&[
            base("input", "accept"),
            rule("input", &[from.clone(), does("drop")]),
        ]);
        assert!(
            said.verdict == Verdict::Warning && said.detail.contains("ip saddr"),
            "{said:?}"
        );
        let said = step(&[
            base("input", "drop"),
            rule("input", &[from, does("accept")]),
        ]);
        assert!(
            said.verdict == Verdict::Warning && said.detail.contains("ip saddr"),
            "{said:?}"
        );
        let odd = json!({"xt": {"type": "match", "name": "owner"}});
        assert_eq!(
            input("accept", &[odd.clone(), does("drop")]),
            Verdict::Warning
        );
        assert_eq!(input("accept", &[odd]), Verdict::Pass);
        let limit = json!({"limit": {"rate": 5, "per": "second"}});
        assert_eq!(input("drop", &[limit, does("accept")]), Verdict::Warning);
    }

    /// The first lines of most firewalls.
    #[test]
    fn what_concerns_other_packets() {
        for part in [
            ct(json!("invalid")),
            ct(json!({"set": ["established", "related"]})),
            meta("iifname", json!("lo")),
        ] {
            assert_eq!(
                input("accept", &[part.clone(), does("drop")]),
                Verdict::Pass,
                "{part}"
            );
            assert_eq!(
                input("drop", &[part.clone(), does("accept")]),
                Verdict::Failure,
                "{part}"
            );
        }
        let fate = |what: &str| {
            let map = json!({"set": [["established", {"accept": null}], ["new", {what: null}]]});
            json!({"vmap": {"key": {"ct": {"key": "state"}}, "data": map}})
        };
        assert_eq!(input("accept", &[fate("drop")]), Verdict::Failure);
        assert_eq!(input("drop", &[fate("accept")]), Verdict::Pass);
    }
}
