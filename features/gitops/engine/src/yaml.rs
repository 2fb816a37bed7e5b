//! YAML to JSON, as `kubectl` does it.
//!
//! kubectl reads YAML with go-yaml 2, whose scalars are those of YAML 1.1 with exceptions: `yes` and `010` are a boolean and an octal number,
//! and `yEs` is a text. Whether a value is a text must not depend on the program that applies a manifest, so that its rules are here
//! (`resolve.go`, `decode.go`, and `convertToJSONableObject` of sigs.k8s.io/yaml). The parser itself is a library.

mod error;

use std::collections::{HashMap, HashSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Number, Value};
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};

pub(crate) use self::error::{YamlError, YamlFault};

/// The deepest nesting.
const MAX_DEPTH: usize = 200;
/// The most documents of a file.
const MAX_DOCUMENTS: usize = 20_000;

/// A document of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// The first line of its content, from 1.
    pub(crate) line: u64,
}

/// Reads the documents of a file.
///
/// # Errors
///
/// The file is no YAML, or no JSON comes of it, with the first line that is wrong.
pub(crate) fn documents(text: &str) -> Result<Vec<Document>, YamlError> {
    // Files of other systems may begin with a byte order mark, and several of them in one are documents.
    let unmarked = text.trim_start_matches('\u{feff}').replace("\n\u{feff}", "\n");
    let parser = Parser::new_from_str(&unmarked);
    let mut loader = Loader { parser, anchors: HashMap::new(), left: text.len() + 1000 };
    let read = loader.documents();
    match read {
        Err(_) if text.trim_start().starts_with('{') => json(text).or(read),
        read => read,
    }
}

/// Reads values of JSON that follow each other, which is no YAML.
fn json(text: &str) -> Result<Vec<Document>, YamlError> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut documents = Vec::new();
    loop {
        let rest = &text[values.byte_offset()..];
        let begin = text.len() - rest.trim_start().len();
        match values.next() {
            None => return Ok(documents),
            Some(Err(error)) => {
                let line = error.line() as u64;
                return Err(YamlFault::InvalidJson(error.to_string()).at(line));
            }
            Some(Ok(value)) => {
                let line = text[..begin].matches('\n').count() as u64 + 1;
                documents.push(Document { value, line });
            }
        }
    }
}

/// A node with the parts that an alias needs.
#[derive(Clone)]
enum Node {
    Scalar(Scalar),
    List(Vec<Value>),
    Mapping(Map<String, Value>),
}

/// The types of scalars of go-yaml.
#[derive(Clone, Debug, PartialEq)]
enum Scalar {
    Null,
    Bool(bool),
    Int(Number),
    Float(f64),
    Text(String),
    /// `<<` without quotes.
    Merge,
}

struct Loader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, (Node, usize)>,
    /// The nodes that may still come, with those of aliases: a text of this size without aliases has fewer.
    left: usize,
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), YamlError> {
        let invalid = |error: ScanError| {
            YamlFault::InvalidYaml(error.info().to_owned()).at(error.marker().line() as u64)
        };
        loop {
            match self.parser.next().ok_or_else(|| YamlFault::Truncated.at(1))?.map_err(invalid)? {
                (Event::Comment(..), _) => {}
                event => return Ok(event),
            }
        }
    }

    fn documents(&mut self) -> Result<Vec<Document>, YamlError> {
        let mut documents = Vec::new();
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(documents),
                Event::DocumentEnd | Event::StreamStart => {}
                Event::DocumentStart(..) => self.anchors.clear(),
                event => {
                    let line = line(&span).max(1);
                    if documents.len() == MAX_DOCUMENTS {
                        return Err(YamlFault::TooManyDocuments.at(line));
                    }
                    let (node, _) = self.node(event, &span, 0)?;
                    documents.push(Document { value: node.into_value(line)?, line });
                }
            }
        }
    }

    /// Reads a node that begins with an event. Returns it with the number of its nodes.
    fn node(&mut self, event: Event<'a>, span: &Span, depth: usize) -> Result<(Node, usize), YamlError> {
        let at = line(span);
        if depth > MAX_DEPTH {
            return Err(YamlFault::TooDeep.at(at));
        }
        self.spend(1, at)?;
        let (node, anchor, size) = match event {
            Event::Alias(id) => {
                let known = self.anchors.get(&id).cloned();
                let (node, size) = known.ok_or_else(|| YamlFault::RecursiveAlias.at(at))?;
                self.spend(size, at)?;
                return Ok((node, size));
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar =
                    scalar(text.into_owned(), style, tag.as_deref()).map_err(|fault| fault.at(at))?;
                (Node::Scalar(scalar), anchor, 1)
            }
            Event::SequenceStart(_, anchor, _) => {
                let (mut items, mut size) = (Vec::new(), 1);
                loop {
                    let (event, span) = self.next()?;
                    if event == Event::SequenceEnd {
                        break;
                    }
                    let (node, more) = self.node(event, &span, depth + 1)?;
                    size += more;
                    items.push(node.into_value(line(&span))?);
                }
                (Node::List(items), anchor, size)
            }
            Event::MappingStart(_, anchor, _) => {
                let (map, size) = self.mapping(depth)?;
                (Node::Mapping(map), anchor, size)
            }
            _ => return Err(YamlFault::UnexpectedEvent.at(at)),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok((node, size))
    }

    fn mapping(&mut self, depth: usize) -> Result<(Map<String, Value>, usize), YamlError> {
        let (mut map, mut size) = (Map::new(), 1);
        let mut explicit = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            if event == Event::MappingEnd {
                return Ok((map, size));
            }
            let at = line(&span);
            let (key, more) = self.node(event, &span, depth + 1)?;
            let (event, span) = self.next()?;
            let (value, again) = self.node(event, &span, depth + 1)?;
            size += more + again;
            let key = match key {
                // Keys that are merged replace those that come before, and not those that follow.
                Node::Scalar(Scalar::Merge) => {
                    merge(&mut map, value).map_err(|fault| fault.at(at))?;
                    continue;
                }
                key => key.into_key().map_err(|fault| fault.at(at))?,
            };
            if !explicit.insert(key.clone()) {
                return Err(YamlFault::DuplicateKey(key).at(at));
            }
            map.insert(key, value.into_value(line(&span))?);
        }
    }

    fn spend(&mut self, nodes: usize, at: u64) -> Result<(), YamlError> {
        let left = self.left.checked_sub(nodes);
        self.left = left.ok_or_else(|| YamlFault::Expansion.at(at))?;
        Ok(())
    }
}

fn line(span: &Span) -> u64 {
    span.start.line() as u64
}

/// Adds the keys of a mapping, or of the mappings of a list, of which the first one is the strongest.
fn merge(into: &mut Map<String, Value>, from: Node) -> Result<(), YamlFault> {
    match from {
        Node::Mapping(map) => into.extend(map),
        Node::List(items) => {
            for item in items.into_iter().rev() {
                match item {
                    Value::Object(map) => into.extend(map),
                    _ => return Err(YamlFault::InvalidMerge),
                }
            }
        }
        Node::Scalar(_) => return Err(YamlFault::InvalidMerge),
    }
    Ok(())
}

impl Node {
    fn into_value(self, at: u64) -> Result<Value, YamlError> {
        Ok(match self {
            Self::List(items) => items.into(),
            Self::Mapping(map) => map.into(),
            Self::Scalar(Scalar::Null) => Value::Null,
            Self::Scalar(Scalar::Bool(bool)) => bool.into(),
            Self::Scalar(Scalar::Int(number)) => number.into(),
            Self::Scalar(Scalar::Float(float)) => number(float).ok_or_else(|| YamlFault::NotFinite.at(at))?,
            Self::Scalar(Scalar::Text(text)) => text.into(),
            Self::Scalar(Scalar::Merge) => "<<".into(),
        })
    }

    /// Returns a key of JSON.
    fn into_key(self) -> Result<String, YamlFault> {
        Ok(match self {
            Self::Scalar(Scalar::Text(text)) => text,
            Self::Scalar(Scalar::Bool(bool)) => bool.to_string(),
            Self::Scalar(Scalar::Int(number)) => number.to_string(),
            Self::Scalar(Scalar::Float(float)) => float_key(float),
            Self::Scalar(Scalar::Merge) => "<<".to_owned(),
            Self::Scalar(Scalar::Null) => return Err(YamlFault::EmptyKey),
            Self::List(_) | Self::Mapping(_) => return Err(YamlFault::CollectionKey),
        })
    }
}

/// Returns a number as Go prints it: without a fraction if it has none.
fn number(float: f64) -> Option<Value> {
    // Beyond that, Go prints an exponent.
    const WHOLE: f64 = 1e21;
    let whole = (float.fract() == 0.0 && float.abs() < WHOLE).then(|| float.to_string().parse::<i64>().ok());
    match whole.flatten() {
        Some(whole) => Some(whole.into()),
        None => Number::from_f64(float).map(Value::Number),
    }
}

/// Returns a number as a key, as `strconv.FormatFloat(float, 'g', -1, 32)` prints it.
fn float_key(float: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "sigs.k8s.io/yaml prints keys with 32 bits")]
    let float = float as f32;
    if !float.is_finite() {
        let sign = if float < 0.0 { "-" } else { "" };
        return if float.is_nan() { ".nan".to_owned() } else { format!("{sign}.inf") };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..6 => float.to_string(),
        exponent => format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()),
    }
}

/// Returns the scalar of a text in a style and with a tag.
fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar, YamlFault> {
    let Some(tag) = tag else {
        return Ok(match style {
            ScalarStyle::Plain => resolve(text),
            _ => Scalar::Text(text),
        });
    };
    let name = tag.suffix_in_namespace("tag:yaml.org,2002:").unwrap_or_default();
    let is = |wanted: &str| name == wanted;
    if is("binary") {
        let decoded = STANDARD.decode(text.split_whitespace().collect::<String>()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        return text.map(Scalar::Text).ok_or(YamlFault::InvalidBinary);
    }
    let resolved = if ["int", "float", "bool", "null", "merge"].contains(&&*name) {
        resolve(text)
    } else {
        return Ok(Scalar::Text(text));
    };
    match resolved {
        Scalar::Int(_) if is("int") => Ok(resolved),
        Scalar::Int(ref number) if is("float") => Ok(Scalar::Float(number.as_f64().unwrap_or_default())),
        Scalar::Float(_) if is("float") => Ok(resolved),
        Scalar::Bool(_) if is("bool") => Ok(resolved),
        Scalar::Null if is("null") => Ok(resolved),
        Scalar::Merge if is("merge") => Ok(resolved),
        _ => Err(YamlFault::TagMismatch(tag.suffix().to_owned())),
    }
}

/// Returns the scalar of a text without quotes.
fn resolve(text: String) -> Scalar {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Scalar::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        "<<" => return Scalar::Merge,
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        _ => {}
    }
    let number = match text.as_bytes()[0] {
        b'.' if has_separators(&text) => float(&text.replace('_', "")).map(Scalar::Float),
        b'0'..=b'9' | b'+' | b'-' => {
            let plain = text.replace('_', "");
            int(&plain).map(Scalar::Int).or_else(|| float(&plain).map(Scalar::Float))
        }
        _ => None,
    };
    number.unwrap_or(Scalar::Text(text))
}

/// Returns whether each `_` is between two digits.
fn has_separators(text: &str) -> bool {
    let digit = |place: Option<&u8>| place.is_some_and(u8::is_ascii_digit);
    let bytes = text.as_bytes();
    let mut places = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    places.all(|(place, _)| place > 0 && digit(bytes.get(place - 1)) && digit(bytes.get(place + 1)))
}

/// Reads an integer as `strconv.ParseInt` does with the base 0: `0x`, `0b`, `0o`, and `0` in front of an octal number.
fn int(text: &str) -> Option<Number> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let prefix = |prefixes: [&str; 2]| prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix));
    let (base, digits) = match (prefix(["0x", "0X"]), prefix(["0b", "0B"]), prefix(["0o", "0O"])) {
        (Some(digits), ..) => (16, digits),
        (_, Some(digits), _) => (2, digits),
        (.., Some(digits)) => (8, digits),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // The parser of Rust accepts a sign here.
    if !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    // The API server reads larger ones as numbers with a fraction.
    i64::from_str_radix(&format!("{sign}{digits}"), base).ok().map(Number::from)
}

/// Reads a number with a fraction or an exponent: `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`. One that is too large is a text.
fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let mantissa = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty());
    let exponent = exponent.is_none_or(|exponent| !exponent.is_empty() && digits(exponent));
    let number: f64 = text.parse().ok().filter(|_| mantissa && exponent)?;
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents with what `kubectl create --dry-run=client --output json` of Kubernetes 1.37 makes of their key `v`, or without anything if
    /// it refuses them. Each is a line of JSON.
    const KUBECTL: &str = include_str!("yaml/kubectl.jsonl");
    /// Documents that kubectl accepts, and that are refused: the last one of two values would be applied.
    const REFUSED: [&str; 1] = ["v: {a: 1, a: 2}"];

    #[test]
    fn values_are_those_of_kubectl() {
        let cases: Vec<Value> = KUBECTL.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let differs = |case: &&Value| {
            let text = case["yaml"].as_str().unwrap();
            let read = documents(text).ok().and_then(|read| Some(read.first()?.value["v"].clone()));
            let expected = case.get("v").filter(|_| !REFUSED.contains(&text)).cloned();
            match (&read, &expected) {
                // Large ones have one form in Go and another one in Rust.
                (Some(Value::Number(a)), Some(Value::Number(b))) if a.is_f64() => a.as_f64() != b.as_f64(),
                (read, expected) => read != expected,
            }
        };
        let wrong: Vec<&Value> = cases.iter().filter(differs).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(cases.len() >= 200, "{} documents", cases.len());
    }

    #[test]
    fn errors_are_sentences_about_the_file() {
        for (text, expected) in [
            ("a: 1\nb: 2\na: 3\n", (3, "the key a is set twice: remove one of them")),
            ("a:\n  null: 1\n", (2, "a key is empty (null): write it in quotes")),
            ("a: .inf\n", (1, "infinity and NaN are no values of JSON: write a text in quotes")),
            (
                "\na: {{ b }}\n",
                (2, "a key is not a text but a mapping or a list: a text with { or [ needs quotes"),
            ),
            ("a: !!int b\n", (1, "a value is not what its tag !!int says")),
            ("a: &x [*x]\n", (1, "an alias (*) is inside of its own anchor (&)")),
            ("<<: 1\n", (1, "<< needs a mapping, or a list of mappings")),
        ] {
            let error = documents(text).unwrap_err();
            assert_eq!((error.line, &*error.to_string()), expected, "{text}");
        }
    }

    #[test]
    fn aliases_do_not_expand_without_end() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 9].join(", "));
        }
        assert_eq!(documents(&bomb).unwrap_err().fault, YamlFault::Expansion);
        assert!(documents(&format!("a: {}{}", "[".repeat(10_000), "]".repeat(10_000))).is_err());
    }
}
