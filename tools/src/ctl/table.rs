// SPDX-License-Identifier: GPL-2.0

//! Tables and numbers for people.

use comfy_table::{presets, CellAlignment, ContentArrangement, Table};
use std::net::{Ipv6Addr, SocketAddr};

/// A table without lines. Columns whose title starts with `>` are aligned to the right.
pub fn table(titles: &[&str], rows: Vec<Vec<String>>, width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width);
    }
    table.set_header(titles.iter().map(|title| title.trim_start_matches('>')));
    table.add_rows(rows);
    for (column, title) in table.column_iter_mut().zip(titles) {
        column.set_padding((0, 2));
        if title.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

/// Names and values, one pair per line.
pub fn pairs(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter()
        .map(|(name, value)| format!("{name:width$}  {value}\n"))
        .collect()
}

/// Breaks a text into lines of a terminal of so many columns, of which the first `indent` are taken.
pub fn wrap(text: &str, width: Option<u16>, indent: usize) -> Vec<String> {
    // Where next to nothing is left, lines that are too long are easier to read.
    let room = width
        .map(|width| usize::from(width).saturating_sub(indent))
        .filter(|room| *room >= 16);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        let length = line.chars().count() + 1 + word.chars().count();
        if line.is_empty() {
            line.push_str(word);
        } else if room.is_some_and(|room| length > room) {
            lines.push(word.to_string());
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines
}

/// A number of bytes with a binary unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = count as f64;
    let mut unit = "B";
    for next in UNITS {
        // What rounds up to 1024 takes the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" || (value.fract() == 0.0) {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// A GID, shortened as IPv6 addresses are; an IPv4 address if it is one inside.
pub fn gid(text: &str) -> String {
    match text.parse::<Ipv6Addr>() {
        Ok(address) => address
            .to_ipv4_mapped()
            .map_or_else(|| address.to_string(), |v4| v4.to_string()),
        Err(_) => text.to_string(),
    }
}

/// An address with a star for what is not set.
pub fn address(address: &SocketAddr) -> String {
    let port = match address.port() {
        0 => "*".to_string(),
        port => port.to_string(),
    };
    if address.ip().is_unspecified() {
        return format!("*:{port}");
    }
    match address {
        SocketAddr::V4(v4) => format!("{}:{port}", v4.ip()),
        SocketAddr::V6(v6) => format!("[{}]:{port}", v6.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_units() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (65536, "64 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(address(&"0.0.0.0:80".parse().unwrap()), "*:80");
        assert_eq!(address(&"[::]:0".parse().unwrap()), "*:*");
        assert_eq!(address(&"192.0.2.1:5".parse().unwrap()), "192.0.2.1:5");
        assert_eq!(
            address(&"[2001:db8::1]:5".parse().unwrap()),
            "[2001:db8::1]:5"
        );
    }

    #[test]
    fn gids() {
        assert_eq!(gid("0000:0000:0000:0000:0000:ffff:c000:0201"), "192.0.2.1");
        assert_eq!(
            gid("fe80:0000:0000:0000:0000:00ff:fe00:0a01"),
            "fe80::ff:fe00:a01"
        );
        assert_eq!(gid("garbage"), "garbage");
    }

    #[test]
    fn tables_fit_the_terminal() {
        let rows = vec![vec!["some long words here".into(), "12".into()]];
        let wide = table(&["NAME", ">COUNT"], rows.clone(), None);
        assert_eq!(
            wide,
            "NAME                  COUNT\nsome long words here     12\n"
        );
        let narrow = table(&["NAME", ">COUNT"], rows, Some(20));
        assert!(narrow.lines().all(|line| line.len() <= 20), "{narrow}");
        assert!(narrow.contains("words"));
        assert_eq!(table(&["A", "B"], Vec::new(), Some(80)), "A  B\n");
    }

    #[test]
    fn lines_are_broken_between_words() {
        assert_eq!(wrap("one two  three", None, 0), ["one two three"]);
        let lines = wrap("one two three four five six seven", Some(26), 8);
        assert_eq!(lines, ["one two three four", "five six seven"]);
        assert_eq!(
            wrap("one two three four", Some(10), 8),
            ["one two three four"]
        );
        assert_eq!(wrap("", Some(80), 0), [""]);
    }

    #[test]
    fn pairs_are_aligned() {
        assert_eq!(
            pairs(&[("a", "1".into()), ("long", "2".into())]),
            "a     1\nlong  2\n"
        );
    }
}
