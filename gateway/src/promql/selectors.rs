//! PromQL in, PromQL with matchers out.

use promql_parser::{
    label::Matchers,
    parser::{self, BinModifier, Expr, LabelModifier, VectorSelector},
};

use super::{Labels, bad_request, complexity::Budget, not_enforceable};
use crate::failure::Failure;

/// Rewrites the PromQL of one request.
#[derive(Debug)]
pub struct Rewriter<'a> {
    labels: &'a Labels,
    budget: Budget,
}

impl<'a> Rewriter<'a> {
    /// For the callers who see these labels.
    pub fn new(labels: &'a Labels) -> Self {
        Self { labels, budget: Budget::new() }
    }

    /// An expression, each selector of which has the matchers.
    pub fn expression(&mut self, text: &str) -> Result<String, Failure> {
        let mut expression = self.parse(text)?;
        enforce(&mut expression, self.labels)?;
        print(&expression)
    }

    /// A selector that has the matchers.
    pub fn selector(&mut self, text: &str) -> Result<String, Failure> {
        let mut expression = self.parse(text)?;
        match &expression {
            Expr::VectorSelector(VectorSelector { offset: None, at: None, .. }) => {}
            _ => return Err(bad_request("match[] takes a selector of series, like up{job=\"a\"}")),
        }
        enforce(&mut expression, self.labels)?;
        print(&expression)
    }

    /// The selector of all that may be seen.
    pub(super) fn whole(labels: &Labels) -> String {
        VectorSelector::new(None, Matchers::new(labels.matchers().to_vec())).to_string()
    }

    fn parse(&mut self, text: &str) -> Result<Expr, Failure> {
        self.budget.spend(text)?;
        parser::parse(text).map_err(|error| bad_request(format!("the PromQL is not understood: {error}")))
    }
}

/// Adds the matchers to each selector. The parser's own walk does not see the parameter of an aggregation.
fn enforce(expression: &mut Expr, labels: &Labels) -> Result<(), Failure> {
    match expression {
        Expr::VectorSelector(selector) => add(selector, labels),
        Expr::MatrixSelector(selector) => add(&mut selector.vs, labels),
        Expr::Aggregate(aggregate) => {
            // `by ()` is what the printer leaves out.
            if aggregate.modifier == Some(LabelModifier::include(Vec::new())) {
                aggregate.modifier = None;
            }
            if let Some(parameter) = &mut aggregate.param {
                enforce(parameter, labels)?;
            }
            enforce(&mut aggregate.expr, labels)
        }
        Expr::Unary(unary) => enforce(&mut unary.expr, labels),
        Expr::Binary(binary) => {
            binary.modifier = binary.modifier.take().and_then(normal);
            enforce(&mut binary.lhs, labels)?;
            enforce(&mut binary.rhs, labels)
        }
        Expr::Paren(paren) => enforce(&mut paren.expr, labels),
        Expr::Subquery(subquery) => enforce(&mut subquery.expr, labels),
        Expr::Call(call) if call.func.name == "info" => Err(not_enforceable(
            "info() looks at series that it does not name: this caller sees only series with certain labels, and cannot \
             use it",
        )),
        Expr::Call(call) => call.args.args.iter_mut().try_for_each(|argument| enforce(argument, labels)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(()),
        Expr::Extension(_) => Err(not_enforceable("this PromQL is not of Prometheus")),
    }
}

fn add(selector: &mut VectorSelector, labels: &Labels) -> Result<(), Failure> {
    if !selector.matchers.or_matchers.is_empty() {
        return Err(not_enforceable(
            "`or` between the matchers of a selector is not of Prometheus, and the labels of this caller are not enforced \
             in it: use `or` between two selectors",
        ));
    }

    selector.matchers.matchers.extend_from_slice(labels.matchers());
    // In the order in which they are printed.
    selector.matchers.matchers.sort_by_cached_key(ToString::to_string);
    Ok(())
}

/// Without `ignoring ()`, which the printer leaves out.
fn normal(mut modifier: BinModifier) -> Option<BinModifier> {
    let grouped = modifier.card.labels().is_some();
    if !grouped && modifier.matching == Some(LabelModifier::exclude(Vec::new())) {
        modifier.matching = None;
    }
    let empty = BinModifier::default();
    (modifier != empty).then_some(modifier)
}

/// The printed text says what the tree says, or is not sent.
fn print(expression: &Expr) -> Result<String, Failure> {
    let text = expression.to_string();
    if parser::parse(&text).as_ref() == Ok(expression) {
        return Ok(text);
    }

    Err(not_enforceable(
        "this PromQL cannot be written back without a change of its meaning, so the labels of this caller are not \
         enforced in it: avoid times before 1970, durations below a millisecond and empty `ignoring ()`",
    ))
}
