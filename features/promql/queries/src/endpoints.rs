//! The endpoints that can be restricted to labels, and their parameters with PromQL.
//!
//! See <https://prometheus.io/docs/prometheus/latest/querying/api/>. Endpoints that return all series without a selector are
//! missing: `metadata`, `targets`, `status`, remote read; and `rules` and `alerts`, whose `match[]` is ignored by Prometheus
//! before 2.54.

use http::Method;

use super::{labels::Labels, parameters::Parameters, selectors::Rewriter};
use crate::QueryError;

const QUERY: &str = "query";
const MATCH: &str = "match[]";

/// The place of PromQL in the parameters of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `query` is an expression.
    Expression,
    /// Each `match[]` is a selector. Without one, all series are selected.
    Selectors,
    /// The endpoint reads no series.
    Neutral,
}

/// Returns whether a request to Prometheus is a query, which changes nothing, although it may be a POST with a form.
pub fn is_query(method: &Method, path: &str) -> bool {
    Endpoint::find(method, path).is_ok()
}

impl Endpoint {
    /// Returns the endpoint at a path, which is compared byte by byte.
    pub(super) fn find(method: &Method, path: &str) -> Result<Self, QueryError> {
        let (endpoint, forms) = match path {
            "/api/v1/query" | "/api/v1/query_range" | "/api/v1/query_exemplars" => (Self::Expression, true),
            "/api/v1/series" | "/api/v1/labels" => (Self::Selectors, true),
            "/api/v1/format_query" | "/api/v1/parse_query" => (Self::Neutral, true),
            "/api/v1/status/buildinfo" => (Self::Neutral, false),
            "/federate" => (Self::Selectors, false),
            path if is_label_values(path) => (Self::Selectors, false),
            _ => {
                return Err(QueryError::not_enforceable(
                    "this caller may see only series with certain labels, and this path cannot be restricted to them: use \
                     the query API, series, labels or federation",
                ));
            }
        };
        if *method == Method::GET || (forms && *method == Method::POST) {
            return Ok(endpoint);
        }

        let methods = if forms { "GET and POST" } else { "GET" };
        let what = "this caller may see only series with certain labels, which can be enforced here with";
        Err(QueryError::not_enforceable(format!("{what} {methods} only")))
    }

    /// Rewrites the parameters with PromQL. Returns their number.
    pub(super) fn rewrite(
        self,
        parameters: &mut Parameters,
        rewriter: &mut Rewriter<'_>,
    ) -> Result<usize, QueryError> {
        match self {
            Self::Expression => parameters.replace(QUERY, |query| rewriter.expression(query)),
            Self::Selectors => parameters.replace(MATCH, |selector| rewriter.selector(selector)),
            Self::Neutral => Ok(0),
        }
    }

    /// Adds a selector of all allowed series, if the request has none.
    pub(super) fn add(self, parameters: &mut Parameters, labels: &Labels) -> Result<(), QueryError> {
        match self {
            Self::Expression => return Err(QueryError::bad_request("the parameter query is missing")),
            Self::Selectors => parameters.push(MATCH, &Rewriter::all(labels)),
            Self::Neutral => {}
        }
        Ok(())
    }
}

fn is_label_values(path: &str) -> bool {
    let name = path.strip_prefix("/api/v1/label/").and_then(|rest| rest.strip_suffix("/values"));
    name.is_some_and(|name| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}
