//! The expressions of PromQL that the web page and first queries of people need, over generated series.
//!
//! The values of a series are functions of time, so every range has values.

use std::collections::BTreeMap;

use promql_parser::{
    label::Matchers,
    parser::{self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorSelector},
};
use serde_json::{Map, Value, json};

use super::QueryError;

/// The longest expression. The parser has no limit of depth.
const MAX_TEXT: usize = 2048;
/// The labels of an element, by their names.
pub(super) type Labels = BTreeMap<String, String>;

/// The value of an expression at a time.
#[derive(Debug, PartialEq)]
pub(super) enum Evaluated {
    Scalar(f64),
    Vector(Vec<(Labels, f64)>),
}

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Expr, QueryError> {
    if text.len() > MAX_TEXT {
        return Err(QueryError::bad_data(format!("an expression has at most {MAX_TEXT} bytes here")));
    }
    parser::parse(text).map_err(|error| QueryError::parameter("query", &format!("1:1: parse error: {error}")))
}

/// Parses a selector of series.
pub(super) fn selector(text: &str) -> Result<Matchers, QueryError> {
    match parse(text)? {
        Expr::VectorSelector(selector) => matchers(&selector),
        _ => Err(QueryError::parameter("match[]", "it is no selector")),
    }
}

/// Evaluates an expression at a time in seconds.
pub(super) fn evaluate(expression: &Expr, time: f64) -> Result<Evaluated, QueryError> {
    match expression {
        Expr::NumberLiteral(literal) => Ok(Evaluated::Scalar(literal.val)),
        Expr::Paren(inner) => evaluate(&inner.expr, time),
        Expr::Unary(inner) => Ok(match evaluate(&inner.expr, time)? {
            Evaluated::Scalar(value) => Evaluated::Scalar(-value),
            Evaluated::Vector(elements) => Evaluated::Vector(
                elements.into_iter().map(|(labels, value)| (unnamed(labels), -value)).collect(),
            ),
        }),
        Expr::VectorSelector(selector) => {
            let matchers = matchers(selector)?;
            let found = all_series().into_iter().filter(|series| matches(&matchers, series));
            Ok(Evaluated::Vector(found.map(|series| (series.labels_by_name(), series.at(time))).collect()))
        }
        Expr::Call(call) => function(call, time),
        Expr::Aggregate(aggregate) => aggregated(aggregate, time),
        Expr::Binary(binary) => operation(binary, time),
        Expr::Subquery(_) | Expr::StringLiteral(_) | Expr::MatrixSelector(_) | Expr::Extension(_) => {
            Err(unsupported())
        }
    }
}

fn unsupported() -> QueryError {
    let what = "this is a simulator: of PromQL it knows arithmetic, comparisons, vector(), rate(), increase(), and sum, \
                avg, min, max and count with by";
    QueryError::Execution(what.to_owned())
}

fn matchers(selector: &VectorSelector) -> Result<Matchers, QueryError> {
    if selector.offset.is_some() || selector.at.is_some() || !selector.matchers.or_matchers.is_empty() {
        return Err(unsupported());
    }
    let mut matchers = selector.matchers.clone();
    if let Some(name) = &selector.name {
        let equal = promql_parser::label::MatchOp::Equal;
        matchers.matchers.push(promql_parser::label::Matcher::new(equal, "__name__", name));
    }
    Ok(matchers)
}

/// Returns whether matchers select a series.
pub(super) fn matches(matchers: &Matchers, series: &Series) -> bool {
    let value = |name: &str| series.label(name).unwrap_or_default();
    matchers.matchers.iter().all(|matcher| matcher.is_match(value(&matcher.name)))
}

fn unnamed(mut labels: Labels) -> Labels {
    labels.remove("__name__");
    labels
}

fn function(call: &Call, time: f64) -> Result<Evaluated, QueryError> {
    match (call.func.name, call.args.args.as_slice()) {
        ("vector", [argument]) => match evaluate(argument, time)? {
            Evaluated::Scalar(value) => Ok(Evaluated::Vector(vec![(Labels::new(), value)])),
            Evaluated::Vector(_) => Err(unsupported()),
        },
        (name @ ("rate" | "increase"), [argument]) => {
            let Expr::MatrixSelector(selector) = &**argument else { return Err(unsupported()) };
            let (matchers, range) = (matchers(&selector.vs)?, selector.range.as_secs_f64());
            let elements =
                all_series().into_iter().filter(|series| matches(&matchers, series)).map(|series| {
                    let (before, now) = (series.at(time - range), series.at(time));
                    // A counter that is lower than before was reset.
                    let increase = if now < before { now } else { now - before };
                    (
                        unnamed(series.labels_by_name()),
                        if name == "rate" { increase / range } else { increase },
                    )
                });
            Ok(Evaluated::Vector(elements.collect()))
        }
        _ => Err(unsupported()),
    }
}

fn aggregated(aggregate: &AggregateExpr, time: f64) -> Result<Evaluated, QueryError> {
    let Evaluated::Vector(elements) = evaluate(&aggregate.expr, time)? else { return Err(unsupported()) };
    let by: &[String] = match &aggregate.modifier {
        None => &[],
        Some(LabelModifier::Include(labels)) => &labels.labels,
        Some(LabelModifier::Exclude(_)) => return Err(unsupported()),
    };
    let mut groups = BTreeMap::<Labels, Vec<f64>>::new();
    for (labels, value) in elements {
        let labels = labels.into_iter().filter(|(name, _)| by.contains(name)).collect();
        groups.entry(labels).or_default().push(value);
    }
    let operation: fn(&[f64]) -> f64 = match &*aggregate.op.to_string() {
        "sum" => |values| values.iter().sum(),
        "avg" => |values| values.iter().sum::<f64>() / values.len() as f64,
        "min" => |values| values.iter().copied().fold(f64::INFINITY, f64::min),
        "max" => |values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "count" => |values| values.len() as f64,
        _ => return Err(unsupported()),
    };
    Ok(Evaluated::Vector(groups.into_iter().map(|(labels, values)| (labels, operation(&values))).collect()))
}

fn operation(binary: &BinaryExpr, time: f64) -> Result<Evaluated, QueryError> {
    let modified = binary.modifier.as_ref();
    if modified.is_some_and(|modifier| modifier.matching.is_some() || modifier.return_bool) {
        return Err(unsupported());
    }
    let name = binary.op.to_string();
    let apply = |left: f64, right: f64| -> Option<f64> {
        // A comparison keeps the left side.
        let kept = |keeps: bool| keeps.then_some(left);
        match &*name {
            "+" => Some(left + right),
            "-" => Some(left - right),
            "*" => Some(left * right),
            "/" => Some(left / right),
            "%" => Some(left % right),
            "==" => kept(left == right),
            "!=" => kept(left != right),
            ">" => kept(left > right),
            ">=" => kept(left >= right),
            "<" => kept(left < right),
            "<=" => kept(left <= right),
            _ => None,
        }
    };
    if !["+", "-", "*", "/", "%"].contains(&&*name) && !binary.op.is_comparison_operator() {
        return Err(unsupported());
    }
    // Only arithmetic drops the name of the metric.
    let named = |labels: Labels| if binary.op.is_comparison_operator() { labels } else { unnamed(labels) };
    Ok(match (evaluate(&binary.lhs, time)?, evaluate(&binary.rhs, time)?) {
        (Evaluated::Scalar(left), Evaluated::Scalar(right)) => {
            Evaluated::Scalar(apply(left, right).ok_or_else(unsupported)?)
        }
        (Evaluated::Vector(elements), Evaluated::Scalar(right)) => Evaluated::Vector(
            elements
                .into_iter()
                .filter_map(|(labels, left)| Some((named(labels), apply(left, right)?)))
                .collect(),
        ),
        (Evaluated::Scalar(left), Evaluated::Vector(elements)) => Evaluated::Vector(
            elements
                .into_iter()
                .filter_map(|(labels, right)| Some((named(labels), apply(left, right)?)))
                .collect(),
        ),
        (Evaluated::Vector(left), Evaluated::Vector(right)) => {
            let right: BTreeMap<Labels, f64> =
                right.into_iter().map(|(labels, value)| (unnamed(labels), value)).collect();
            let pairs = left.into_iter().filter_map(|(labels, left)| {
                let right = *right.get(&unnamed(labels.clone()))?;
                Some((named(labels), apply(left, right)?))
            });
            Evaluated::Vector(pairs.collect())
        }
    })
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

    pub(super) fn labels_by_name(&self) -> Labels {
        self.labels().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
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

/// The pods with metrics, and their containers. The second one restarts now and then.
const PODS: [(&str, &str); 3] =
    [("web-simulated-0", "web"), ("worker-simulated-0", "worker"), ("db-simulated-0", "db")];

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
    for (index, (pod, container)) in PODS.into_iter().enumerate() {
        let more = [("namespace", "demo"), ("pod", pod), ("container", container)];
        let mut add = |name: &str, value: fn(f64, f64) -> f64| {
            all.push(series(name, "simulated-node", index, &more, value))
        };
        // Each of the counters grows faster and slower in an hour.
        add("container_cpu_usage_seconds_total", |time, index| {
            (index + 1.0) * (0.05 * time + 12.0 * (time / 600.0).sin())
        });
        add("container_memory_working_set_bytes", |time, index| {
            (index + 1.0) * (64e6 + 16e6 * (time / 900.0).sin()).round()
        });
        add("container_network_receive_bytes_total", |time, index| {
            (index + 1.0) * (2000.0 * time + 300_000.0 * (time / 700.0).sin())
        });
        add("container_network_transmit_bytes_total", |time, index| {
            (index + 1.0) * (900.0 * time + 200_000.0 * (time / 500.0).sin())
        });
        add("kube_pod_container_status_restarts_total", |time, index| {
            if index == 1.0 { (time / 300.0).floor() } else { 0.0 }
        });
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

    fn at(text: &str, time: f64) -> Evaluated {
        evaluate(&parse(text).expect(text), time).expect(text)
    }

    /// Returns the elements as `name=value name=value: number`.
    fn vector(text: &str) -> Vec<String> {
        let Evaluated::Vector(elements) = at(text, 3600.0) else { panic!("{text} is no vector") };
        let show = |(labels, value): (Labels, f64)| {
            let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("{}: {value:.1}", labels.join(" "))
        };
        elements.into_iter().map(show).collect()
    }

    #[test]
    fn arithmetic_has_a_value() {
        for (text, value) in
            [("1+1", 2.0), ("2*(3 - 1) / 4", 1.0), ("-1.5e1 + 16", 1.0), ("7 % 4", 3.0), ("1--1", 2.0)]
        {
            assert_eq!(at(text, 0.0), Evaluated::Scalar(value), "{text}");
        }
        assert_eq!(at(" vector( 1 ) ", 0.0), Evaluated::Vector(vec![(Labels::new(), 1.0)]));
    }

    #[test]
    fn selectors_match() {
        let count = |text: &str| {
            let matchers = selector(text).expect(text);
            all_series().iter().filter(|series| matches(&matchers, series)).count()
        };
        assert_eq!(count("up"), 3);
        assert_eq!(count(r#"simulated_requests_total{code="500", job!='simulated-web',}"#), 2);
        assert_eq!(count(r#"up{job=~"simulated-(api|web)"}"#), 2);
        assert_eq!(count("absent"), 0);
        assert!(selector("1+1").is_err());
    }

    #[test]
    fn rates_and_groups_are_evaluated() {
        assert_eq!(vector("sum(up)"), [": 3.0"]);
        assert_eq!(vector("count by (job) (simulated_requests_total) > 5"), [""; 0]);
        assert_eq!(vector("max by (job) (up{job=\"simulated-api\"} + 1)"), ["job=simulated-api: 2.0"]);
        assert_eq!(
            vector("sum by (job) (rate(simulated_requests_total{code=\"200\"}[5m]))"),
            ["job=simulated-api: 3.0", "job=simulated-node: 6.0", "job=simulated-web: 9.0"]
        );
    }

    /// The queries of the view Metrics of the web page.
    #[test]
    fn queries_of_the_web_page_have_values() {
        for (by, selector) in [("namespace", ""), ("pod", "namespace=\"demo\",")] {
            for text in [
                format!(
                    "sum by ({by}) (rate(container_cpu_usage_seconds_total{{{selector}container!=\"\"}}[5m]))"
                ),
                format!("sum by ({by}) (container_memory_working_set_bytes{{{selector}container!=\"\"}})"),
                format!(
                    "sum by ({by}) (rate(container_network_receive_bytes_total{{{selector}pod!=\"\"}}[5m])) + \
                     sum by ({by}) (rate(container_network_transmit_bytes_total{{{selector}pod!=\"\"}}[5m]))"
                ),
                format!(
                    "sum by ({by}) (increase(kube_pod_container_status_restarts_total{{{selector}pod!=\"\"}}[1h])) > 0"
                ),
            ] {
                let found = vector(&text);
                let expected = if by == "pod" && !text.ends_with("> 0") { 3 } else { 1 };
                assert_eq!(found.len(), expected, "{text}: {found:?}");
                assert!(found.iter().all(|element| element.starts_with(by)), "{text}: {found:?}");
            }
        }
    }

    #[test]
    fn other_expressions_are_refused() {
        let deep = "(".repeat(100_000);
        for text in ["1+", "{}", r#"up{job="a""#, "é", "1e", &deep] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in [
            "histogram_quantile(0.9, up)",
            "up offset 5m",
            "sum without (job) (up)",
            "up * on (job) up",
            "1 > bool 2",
            "up and up",
            "up[5m]",
            "max_over_time(up[5m:1m])",
        ] {
            let parsed = parse(text).expect(text);
            assert!(matches!(evaluate(&parsed, 0.0), Err(QueryError::Execution(_))), "{text}");
        }
    }
}
