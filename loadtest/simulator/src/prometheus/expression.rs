//! The supported expressions: arithmetic on literals, `vector(…)`, and selectors with `=` and `!=`.

use super::series::Series;

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
            super::super::series::all().iter().filter(|series| selector.matches(series)).count()
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
