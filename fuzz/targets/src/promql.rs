//! PromQL of callers that may read only the series with certain labels.
//!
//! Input: an expression.
//!
//! * Every selector of a rewritten expression has the matchers. Two readings agree on that: the parser's tree, and a
//!   tokenizer without a parser, for which each name outside of braces is an operator, a function, a label of a
//!   grouping, or is followed by braces with the matchers.
//! * A rewritten expression can be rewritten again, unless it exceeds a limit.
//! * An expression that the parser rejects is not rewritten. Rewriting ends quickly (libFuzzer's `-timeout`) and does not
//!   overflow the stack.

use std::{collections::BTreeMap, sync::LazyLock};

use promql::{Labels, Rewriter};
use promql_parser::parser::{self, Expr, VectorSelector};
use request_info::prometheus::SeriesLabels;

const MATCHERS: [&str; 2] = [r#"cluster="one""#, r#"ns=~"a\\.b|c""#];
/// Words outside of braces other than functions, operators with parentheses, and metrics.
const WORDS: &[&str] = &["and", "or", "unless", "atan2", "bool", "inf", "nan"];
/// Words before a list of labels in parentheses.
const GROUPINGS: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];

static LABELS: LazyLock<Labels> = LazyLock::new(|| {
    let labels = [("cluster", &["one"][..]), ("ns", &["a.b", "c"])];
    let owned = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
    let map: BTreeMap<_, _> = labels.map(|(name, values)| (name.to_owned(), owned(values))).into();
    Labels::new(&SeriesLabels::new(map).expect("they are labels")).expect("they are matchers")
});

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(rewritten) = Rewriter::new(&LABELS).expression(text) else { return };
    assert!(parser::parse(text).is_ok(), "{text:?} is no PromQL");

    let tree = parser::parse(&rewritten).expect("what is sent is PromQL");
    selectors(&tree, &mut |selector| {
        for matcher in MATCHERS {
            let found = selector.matchers.matchers.iter().any(|found| found.to_string() == matcher);
            assert!(found && selector.matchers.or_matchers.is_empty(), "{rewritten:?} of {text:?}");
        }
    });
    read(&rewritten).unwrap_or_else(|what| panic!("{what} in {rewritten:?} of {text:?}"));

    // The second rewriting adds the matchers again. Only a limit may reject that.
    match Rewriter::new(&LABELS).expression(&rewritten) {
        Ok(_) => {}
        Err(failure) => {
            assert!(failure.message.contains("than") || failure.message.contains("costly"), "{failure}")
        }
    }
}

/// Visits every selector of a tree, including those in the parameters of aggregations.
fn selectors(tree: &Expr, see: &mut impl FnMut(&VectorSelector)) {
    match tree {
        Expr::VectorSelector(selector) => see(selector),
        Expr::MatrixSelector(selector) => see(&selector.vs),
        Expr::Aggregate(aggregate) => {
            aggregate.param.iter().for_each(|parameter| selectors(parameter, see));
            selectors(&aggregate.expr, see);
        }
        Expr::Unary(unary) => selectors(&unary.expr, see),
        Expr::Binary(binary) => [&binary.lhs, &binary.rhs].into_iter().for_each(|side| selectors(side, see)),
        Expr::Paren(paren) => selectors(&paren.expr, see),
        Expr::Subquery(subquery) => selectors(&subquery.expr, see),
        Expr::Call(call) => {
            assert_ne!(call.func.name, "info");
            call.args.args.iter().for_each(|argument| selectors(argument, see));
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
        Expr::Extension(_) => panic!("an extension"),
    }
}

/// Checks a rewritten expression token by token. It has no comments, and its strings have double quotes.
fn read(text: &str) -> Result<(), String> {
    let mut rest = text;
    let mut grouping = false;
    let mut before = String::new();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => string(rest).ok_or("an open string")?,
            '{' => braces(rest).ok_or("open braces")?,
            c if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        let next = rest.trim_start().chars().next();
        match first {
            '{' if MATCHERS.iter().all(|matcher| token.contains(matcher)) => {}
            '{' => return Err(format!("{token} has no matchers")),
            '(' => grouping = GROUPINGS.contains(&&*before),
            ')' => grouping = false,
            '#' | '\'' | '`' => return Err(format!("a {first}")),
            '[' if rest.split_once(']').is_none_or(|(range, _)| range.contains(|c| !word(c))) => {
                return Err("an odd range".to_owned());
            }
            c if word(c) && !c.is_ascii_digit() && !grouping => {
                let lower = token.to_ascii_lowercase();
                let called = next == Some('(');
                let known = WORDS.contains(&&*lower) || GROUPINGS.contains(&&*lower) || lower == "offset";
                // In `sum by (a) (…)` the operator's parentheses follow the grouping.
                let aggregates = rest.starts_with(" by (") || rest.starts_with(" without (");
                if !called && !known && !aggregates && !rest.starts_with('{') && before != "[" {
                    return Err(format!("{token:?} without matchers"));
                }
                if called && lower == "info" {
                    return Err("info".to_owned());
                }
            }
            _ => {}
        }
        if !first.is_whitespace() {
            before = token.to_ascii_lowercase();
        }
    }
    Ok(())
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.')
}

/// Returns the length of a string in double quotes.
fn string(text: &str) -> Option<usize> {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let ends = *c == '"' && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

/// Returns the length up to the closing brace. Braces in strings do not count.
fn braces(text: &str) -> Option<usize> {
    let mut at = 1;
    loop {
        match text[at..].chars().next()? {
            '"' => at += string(&text[at..])?,
            '}' => return Some(at + 1),
            c => at += c.len_utf8(),
        }
    }
}
