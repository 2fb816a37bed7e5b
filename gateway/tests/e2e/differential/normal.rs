//! Two answers as they are compared.

use serde_json::Value;

use super::{answer::Answer, group::Kind, headers::Allowed, side::Side};
use crate::support::normal;

/// Longest text shown of a difference.
const SHOWN: usize = 2000;

/// What the cluster makes up for each object or request.
const VARYING: [&str; 11] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "time",
    "lastUpdateTime",
    "lastTransitionTime",
    "token",
    "expirationTimestamp",
    "clusterIP",
    "clusterIPs",
];

/// The differences between two answers, in words.
pub(super) fn differences(
    kind: Kind,
    allowed: &Allowed,
    (direct, answer): (&Side, &Answer),
    (through, other): (&Side, &Answer),
) -> (Vec<String>, Vec<String>) {
    let text = |side: &Side, bytes: &[u8]| {
        let text = side.anonymous(&String::from_utf8_lossy(bytes));
        match kind {
            Kind::Shared => normal(&text, "NAMESPACE"),
            Kind::Twin => json_lines(&text).unwrap_or_else(|| normal(&text, "NAMESPACE")),
        }
    };
    let compare = |what: &str, mine: &[u8], theirs: &[u8]| {
        let (mine, theirs) = (text(direct, mine), text(through, theirs));
        (mine != theirs).then(|| difference(what, &mine, &theirs))
    };
    match (answer, other) {
        (
            Answer::Program { code, stdout, stderr },
            Answer::Program { code: code2, stdout: out2, stderr: err2 },
        ) => {
            let codes =
                (code != code2).then(|| format!("exit code: {code} without the tunnel, {code2} through it"));
            let all = [codes, compare("stdout", stdout, out2), compare("stderr", stderr, err2)];
            (all.into_iter().flatten().collect(), Vec::new())
        }
        (
            Answer::Http { status_line, headers, body, stderr },
            Answer::Http { status_line: line2, headers: headers2, body: body2, stderr: err2 },
        ) => {
            let bodies = match kind {
                // Both looked at the same objects.
                Kind::Shared => (body != body2).then(|| bytes(body, body2)),
                Kind::Twin => compare("body", body, body2),
            };
            let all = [
                compare("status", status_line.as_bytes(), line2.as_bytes()),
                bodies,
                compare("stderr", stderr, err2),
            ];
            let (mut headers, mut headers2) = (headers.clone(), headers2.clone());
            if kind == Kind::Twin {
                // Versions of twin objects have numbers of different lengths. The bodies were compared.
                for headers in [&mut headers, &mut headers2] {
                    headers.retain(|(name, _)| name != "content-length");
                }
            }
            let (refused, seen) = allowed.judge(&headers, &headers2);
            (all.into_iter().flatten().chain(refused).collect(), seen.into_iter().collect())
        }
        _ => (vec!["one is HTTP, the other is not".to_owned()], Vec::new()),
    }
}

/// Two bodies that are not the same to the byte.
fn bytes(direct: &[u8], through: &[u8]) -> String {
    let texts = [direct, through].map(String::from_utf8_lossy);
    let lines = difference("body", &texts[0], &texts[1]);
    format!("{} bytes without the tunnel, {} through it; {lines}", direct.len(), through.len())
}

/// The lines that differ, from the first one on.
fn difference(what: &str, direct: &str, through: &str) -> String {
    let (mut left, mut right) = (direct.lines().peekable(), through.lines().peekable());
    let mut line = 1;
    while left.peek().is_some() && left.peek() == right.peek() {
        (_, _) = (left.next(), right.next());
        line += 1;
    }
    let rest = |lines: &mut dyn Iterator<Item = &str>| lines.take(4).collect::<Vec<_>>().join("\n  ");
    let (left, right) = (rest(&mut left), rest(&mut right));
    let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
    format!("{what}, from line {line} on\n- {}\n+ {}", cut(&left), cut(&right))
}

/// JSON documents, one a line, without what varies. `None` if it is something else.
fn json_lines(text: &str) -> Option<String> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let mut document = document.ok().filter(|document| document.is_object())?;
        blank(&mut document);
        documents.push(serde_json::to_string_pretty(&document).unwrap());
    }
    (!documents.is_empty()).then(|| documents.join("\n"))
}

fn blank(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if VARYING.contains(&&**key) { *value = Value::from("…") } else { blank(value) }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(blank),
        _ => {}
    }
}
