//! The supported expressions (arithmetic on literals, `vector(…)`, and selectors with `=` and `!=`), and the generated series.
//!
//! The values of a series are functions of time, so every range has values.

use serde_json::{Map, Value, json};

#[derive(Debug, PartialEq)]
pub(super) enum Expression {
    Scalar(f64),
    Vector(f64),
    Selector(Selector),
}

impl Expression {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(value) = arithmetic(text) {
            return Some(Self::Scalar(value));
        }
        let argument = text.strip_prefix("vector").map(str::trim).and_then(|rest| rest.strip_prefix('('));
        if let Some(value) = argument.and_then(|rest| rest.strip_suffix(')')).and_then(arithmetic) {
            return Some(Self::Vector(value));
        }
        Selector::parse(text).map(Self::Selector)
    }
}

/// A selector such as `name{label="value",other!="value"}`. Each part may be omitted.
#[derive(Debug, PartialEq)]
pub(super) struct Selector {
    matchers: Vec<Matcher>,
}

#[derive(Debug, PartialEq)]
struct Matcher {
    label: String,
    equal: bool,
    value: String,
}

impl Selector {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (name, braces) = text.split_at(text.find('{').unwrap_or(text.len()));
        let name = name.trim();
        let mut matchers = Vec::new();
        if !name.is_empty() {
            let matcher = Matcher { label: "__name__".to_owned(), equal: true, value: name.to_owned() };
            matchers.push(Some(matcher).filter(|_| is_identifier(name, ":"))?);
        }
        if !braces.is_empty() {
            let mut rest = braces.strip_prefix('{')?.strip_suffix('}')?.trim();
            while !rest.is_empty() {
                let (matcher, after) = matcher(rest)?;
                matchers.push(matcher);
                rest = match after.strip_prefix(',') {
                    Some(after) => after.trim_start(),
                    None => Some(after).filter(|after| after.is_empty())?,
                };
            }
        }
        // Prometheus refuses a selector that matches every series.
        let selective = matchers.iter().any(|matcher| matcher.equal && !matcher.value.is_empty());
        selective.then_some(Self { matchers })
    }

    pub(super) fn matches(&self, series: &Series) -> bool {
        self.matchers.iter().all(|matcher| {
            let value = series.label(&matcher.label).unwrap_or_default();
            (value == matcher.value) == matcher.equal
        })
    }
}

/// Parses one matcher. Returns it with the rest of the text.
fn matcher(text: &str) -> Option<(Matcher, &str)> {
    let (label, rest) = text.split_at(text.find(['=', '!'])?);
    let label = label.trim();
    let (equal, rest) = match rest.strip_prefix("!=") {
        Some(rest) => (false, rest),
        None => (true, rest.strip_prefix('=')?),
    };
    let rest = rest.trim_start();
    let quote = rest.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let mut value = String::new();
    let mut characters = rest[1..].chars();
    loop {
        match characters.next()? {
            '\\' => value.push(match characters.next()? {
                'n' => '\n',
                't' => '\t',
                escaped => escaped,
            }),
            character if character == quote => break,
            character => value.push(character),
        }
    }
    let label = Some(label).filter(|label| is_identifier(label, ""))?.to_owned();
    Some((Matcher { label, equal, value }, characters.as_str().trim_start()))
}

fn is_identifier(text: &str, also: &str) -> bool {
    let allowed =
        |character: char| character.is_ascii_alphanumeric() || character == '_' || also.contains(character);
    !text.is_empty() && text.chars().all(allowed) && !text.starts_with(|first: char| first.is_ascii_digit())
}

/// Evaluates arithmetic on literals.
fn arithmetic(text: &str) -> Option<f64> {
    let mut parser = Arithmetic { rest: text.trim(), depth: 0 };
    let value = parser.sum()?;
    parser.rest.is_empty().then_some(value)
}

struct Arithmetic<'text> {
    rest: &'text str,
    depth: usize,
}

/// The maximum depth of parentheses, so that recursion does not exhaust the stack.
const MAX_DEPTH: usize = 100;

impl Arithmetic<'_> {
    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.factor()?;
        loop {
            if self.take('*') {
                value *= self.factor()?;
            } else if self.take('/') {
                value /= self.factor()?;
            } else if self.take('%') {
                value %= self.factor()?;
            } else {
                return Some(value);
            }
        }
    }

    fn factor(&mut self) -> Option<f64> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = if self.take('-') {
            -self.factor()?
        } else if self.take('+') {
            self.factor()?
        } else if self.take('(') {
            let value = self.sum()?;
            self.take(')').then_some(value)?
        } else {
            self.literal()?
        };
        self.depth -= 1;
        Some(value)
    }

    fn literal(&mut self) -> Option<f64> {
        let plain = |character: char| !character.is_ascii_digit() && character != '.';
        let mut end = self.rest.find(plain).unwrap_or(self.rest.len());
        let exponent = self.rest[end..].strip_prefix(['e', 'E']).filter(|_| end > 0);
        if let Some(digits) = exponent.map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest)) {
            let length = digits.find(plain).unwrap_or(digits.len());
            end = self.rest.len() - digits.len() + length;
        }
        let (literal, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        literal.parse().ok()
    }

    fn take(&mut self, operator: char) -> bool {
        let rest = self.rest.strip_prefix(operator);
        self.rest = rest.map_or(self.rest, str::trim_start);
        rest.is_some()
    }
}

/// One time series.
#[derive(Debug)]
pub(super) struct Series {
    labels: Vec<(&'static str, String)>,
    value: fn(time: f64, index: f64) -> f64,
    index: f64,
}

impl Series {
    /// Its labels, including `__name__`.
    pub(super) fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(name, value)| (*name, value.as_str()))
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels().find(|(label, _)| *label == name).map(|(_, value)| value)
    }

    pub(super) fn metric(&self) -> Value {
        let labels: Map<String, Value> =
            self.labels().map(|(name, value)| (name.to_owned(), value.into())).collect();
        labels.into()
    }

    pub(super) fn at(&self, time: f64) -> f64 {
        (self.value)(time, self.index)
    }
}

/// Returns all series.
pub(super) fn all_series() -> Vec<Series> {
    let mut all = Vec::new();
    for (index, job) in ["simulated-api", "simulated-node", "simulated-web"].into_iter().enumerate() {
        all.push(series("up", job, index, &[], |_, _| 1.0));
        for code in ["200", "500"] {
            // The counter is reset every day, as after a restart.
            let value: fn(f64, f64) -> f64 = match code {
                "200" => |time, index| (time.rem_euclid(86_400.0) * (index + 1.0) * 3.0).floor(),
                _ => |time, index| (time.rem_euclid(86_400.0) * (index + 1.0) * 0.05).floor(),
            };
            all.push(series("simulated_requests_total", job, index, &[("code", code)], value));
        }
    }
    all.push(series("node_load1", "simulated-node", 0, &[], |time, _| {
        ((time / 300.0).sin() * 50.0 + 100.0).round() / 100.0
    }));
    all
}

pub(super) fn metadata() -> Value {
    let entry = |kind: &str, help: &str| json!([{ "type": kind, "help": help, "unit": "" }]);
    json!({
        "node_load1": entry("gauge", "1m load average of a node that does not exist."),
        "simulated_requests_total": entry("counter", "Requests nobody sent."),
        "up": entry("gauge", "Whether the simulated target is up, which it is."),
    })
}

fn series(
    name: &str,
    job: &str,
    index: usize,
    labels: &[(&'static str, &str)],
    value: fn(f64, f64) -> f64,
) -> Series {
    let common = [("__name__", name), ("instance", "simulated:9100"), ("job", job)];
    let labels = common.iter().chain(labels).map(|(name, value)| (*name, (*value).to_owned())).collect();
    Series { labels, value, index: index as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_has_a_value() {
        for (text, value) in
            [("1+1", 2.0), ("2*(3 - 1) / 4", 1.0), ("-1.5e1 + 16", 1.0), ("7 % 4", 3.0), ("1--1", 2.0)]
        {
            assert_eq!(Expression::parse(text), Some(Expression::Scalar(value)), "{text}");
        }
        assert_eq!(Expression::parse(" vector( 1 ) "), Some(Expression::Vector(1.0)));
    }

    #[test]
    fn selectors_match() {
        let count = |text: &str| {
            let selector = Selector::parse(text).expect(text);
            all_series().iter().filter(|series| selector.matches(series)).count()
        };
        assert_eq!(count("up"), 3);
        assert_eq!(count(r#"simulated_requests_total{code="500", job!='simulated-web',}"#), 2);
        assert_eq!(count(r#"{job="simulated-node"}"#), 4);
        assert_eq!(count("absent"), 0);
    }

    #[test]
    fn other_expressions_are_refused() {
        let deep = "(".repeat(100_000);
        for text in [
            "rate(up[5m])",
            "up + 1",
            "sum(up)",
            "1+",
            "{}",
            r#"up{job=~"a"}"#,
            r#"up{job="a""#,
            "é",
            "1e",
            &deep,
        ] {
            assert_eq!(Expression::parse(text), None, "{text}");
        }
    }
}
