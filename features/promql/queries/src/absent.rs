//! The labels of the results of `absent()` and `absent_over_time()`.

use std::collections::BTreeMap;

use promql_parser::{
    label::{METRIC_NAME, MatchOp},
    parser::{self, Call, Expr, StringLiteral},
};

/// Returns the labels that Prometheus takes from the matchers of the argument (`createLabelsForAbsentFunction`), if the function is one
/// of these: of each `=` that is the only matcher of its label.
pub(super) fn labels(call: &Call) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    if !matches!(call.func.name, "absent" | "absent_over_time") {
        return labels;
    }
    let selector = match call.args.args.first().map(|argument| &**argument) {
        Some(Expr::VectorSelector(selector)) => selector,
        Some(Expr::MatrixSelector(matrix)) => &matrix.vs,
        _ => return labels,
    };
    let mut named = Vec::new();
    for matcher in selector.matchers.matchers.iter().filter(|matcher| matcher.name != METRIC_NAME) {
        if matcher.op == MatchOp::Equal && !named.contains(&&*matcher.name) {
            named.push(&*matcher.name);
            labels.insert(matcher.name.clone(), matcher.value.clone());
        } else {
            labels.remove(&matcher.name);
        }
    }
    labels
}

/// Adds a label to the results of an expression that do not have it.
pub(super) fn add_label(expression: &mut Expr, name: &str, value: &str) {
    let template = parser::parse(r#"label_replace(vector(0), "a", "b", "a", "")"#);
    let Ok(Expr::Call(mut call)) = template else { unreachable!("it is a call") };
    // `$1` would be a group of the regular expression.
    let value = value.replace('$', "$$");
    let texts =
        [name, &*value, name, ""].map(|text| Expr::StringLiteral(StringLiteral { val: text.to_owned() }));
    let vector = std::mem::replace(expression, Expr::StringLiteral(StringLiteral { val: String::new() }));
    call.args.args = [vector].into_iter().chain(texts).map(Box::new).collect();
    *expression = Expr::Call(call);
}
