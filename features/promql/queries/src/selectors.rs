//! Adds matchers to the selectors of PromQL.

use promql_parser::{
    label::Matchers,
    parser::{self, BinModifier, Expr, LabelModifier, VectorSelector},
};

use super::{
    absent,
    complexity::{MAX_BYTES, ParserBudget, too_long},
    labels::Labels,
    spelling,
};
use crate::QueryError;

/// Rewrites the PromQL of one request.
#[derive(Debug)]
pub struct Rewriter<'a> {
    labels: &'a Labels,
    budget: ParserBudget,
}

impl<'a> Rewriter<'a> {
    /// Creates a rewriter that adds the matchers of these labels.
    pub fn new(labels: &'a Labels) -> Self {
        Self { labels, budget: ParserBudget::new() }
    }

    /// Adds the matchers to each selector of an expression.
    pub fn expression(&mut self, text: &str) -> Result<String, QueryError> {
        let mut expression = self.parse(text)?;
        enforce(&mut expression, self.labels)?;
        print(&expression)
    }

    /// Adds the matchers to a selector.
    pub fn selector(&mut self, text: &str) -> Result<String, QueryError> {
        let mut expression = self.parse(text)?;
        match &expression {
            Expr::VectorSelector(VectorSelector { offset: None, at: None, .. }) => {}
            _ => {
                return Err(QueryError::bad_request(
                    "match[] takes a selector of series, like up{job=\"a\"}",
                ));
            }
        }
        enforce(&mut expression, self.labels)?;
        print(&expression)
    }

    /// Returns the selector of all series with the labels.
    pub(super) fn all(labels: &Labels) -> String {
        VectorSelector::new(None, Matchers::new(labels.matchers().to_vec())).to_string()
    }

    fn parse(&mut self, text: &str) -> Result<Expr, QueryError> {
        if text.len() > MAX_BYTES {
            return Err(too_long());
        }
        let text = spelling::normalize(text);
        self.budget.spend(&text)?;
        parser::parse(&text)
            .map_err(|error| QueryError::bad_request(format!("the PromQL is invalid: {error}")))
    }
}

/// Adds the matchers to each selector. The visitor of the parser skips the parameter of an aggregation.
fn enforce(expression: &mut Expr, labels: &Labels) -> Result<(), QueryError> {
    match expression {
        Expr::VectorSelector(selector) => add(selector, labels),
        Expr::MatrixSelector(selector) => add(&mut selector.vs, labels),
        Expr::Aggregate(aggregate) => {
            // The printer omits `by ()`.
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
            binary.modifier = binary.modifier.take().and_then(normalize);
            enforce(&mut binary.lhs, labels)?;
            enforce(&mut binary.rhs, labels)
        }
        Expr::Paren(paren) => enforce(&mut paren.expr, labels),
        Expr::Subquery(subquery) => enforce(&mut subquery.expr, labels),
        Expr::Call(call) if call.func.name == "info" => Err(QueryError::not_enforceable(
            "info() reads series without a selector: this caller may see only series with certain labels, and cannot use it",
        )),
        Expr::Call(call) => {
            let named = absent::labels(call);
            call.args.args.iter_mut().try_for_each(|argument| enforce(argument, labels))?;
            let left = absent::labels(call);
            let lost = named.into_iter().filter(|(name, _)| !left.contains_key(name));
            lost.for_each(|(name, value)| absent::add_label(expression, &name, &value));
            Ok(())
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(()),
        Expr::Extension(_) => Err(QueryError::not_enforceable("this PromQL is not supported by Prometheus")),
    }
}

fn add(selector: &mut VectorSelector, labels: &Labels) -> Result<(), QueryError> {
    if !selector.matchers.or_matchers.is_empty() {
        return Err(QueryError::not_enforceable(
            "`or` between the matchers of a selector is not supported by Prometheus, and the labels of this caller cannot be \
             enforced in it: use `or` between two selectors",
        ));
    }

    let own = &mut selector.matchers.matchers;
    let missing: Vec<_> =
        labels.matchers().iter().filter(|matcher| !own.contains(matcher)).cloned().collect();
    own.extend(missing);
    // In the order of the printer.
    selector.matchers.matchers.sort_by_cached_key(ToString::to_string);
    Ok(())
}

/// Removes `ignoring ()`, which the printer omits.
fn normalize(mut modifier: BinModifier) -> Option<BinModifier> {
    let grouped = modifier.card.labels().is_some();
    if !grouped && modifier.matching == Some(LabelModifier::exclude(Vec::new())) {
        modifier.matching = None;
    }
    let empty = BinModifier::default();
    (modifier != empty).then_some(modifier)
}

/// Prints an expression. Returns an error if the printed text does not parse to the same expression.
fn print(expression: &Expr) -> Result<String, QueryError> {
    let text = expression.to_string();
    if parser::parse(&text).as_ref() == Ok(expression) {
        return Ok(text);
    }

    Err(QueryError::not_enforceable(
        "this PromQL cannot be printed without a change of its meaning, so that the labels of this caller cannot be \
         enforced in it: avoid times before 1970, durations below a millisecond and empty `ignoring ()`",
    ))
}
