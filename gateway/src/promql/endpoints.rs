//! Which endpoints can be limited to labels, and in which of their parameters.
//!
//! <https://prometheus.io/docs/prometheus/latest/querying/api/>. Not among them is what tells of all series and takes no
//! selector: `metadata`, `targets`, `status`, remote read; and `rules` and `alerts`, whose `match[]` Prometheus before
//! 2.54 does not know and ignores.

use http::Method;

use super::{Labels, Rewriter, bad_request, not_enforceable, parameters::Parameters};
use crate::failure::Failure;

const QUERY: &str = "query";
const MATCH: &str = "match[]";

/// Where an endpoint is told which series to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// In `query`, an expression.
    Expression,
    /// In each `match[]`, a selector; without one it looks at all.
    Selectors,
    /// Nowhere: it looks at none.
    Neutral,
}

impl Endpoint {
    /// The endpoint at a path, compared byte by byte: another spelling is another path.
    pub(super) fn of(method: &Method, path: &str) -> Result<Self, Failure> {
        let (endpoint, forms) = match path {
            "/api/v1/query" | "/api/v1/query_range" | "/api/v1/query_exemplars" => (Self::Expression, true),
            "/api/v1/series" | "/api/v1/labels" => (Self::Selectors, true),
            "/api/v1/format_query" | "/api/v1/parse_query" => (Self::Neutral, true),
            "/api/v1/status/buildinfo" => (Self::Neutral, false),
            "/federate" => (Self::Selectors, false),
            path if is_label_values(path) => (Self::Selectors, false),
            _ => {
                return Err(not_enforceable(
                    "this caller sees only series with certain labels, and what is at this path cannot be limited to \
                     them: the query API, series, labels and federation can",
                ));
            }
        };
        if *method == Method::GET || (forms && *method == Method::POST) {
            return Ok(endpoint);
        }

        let methods = if forms { "GET and POST" } else { "GET" };
        let what = "this caller sees only series with certain labels, which can be enforced here with";
        Err(not_enforceable(format!("{what} {methods} only")))
    }

    /// Rewrites what names series among these parameters, and says how many there were.
    pub(super) fn rewrite(
        self,
        parameters: &mut Parameters,
        rewriter: &mut Rewriter<'_>,
    ) -> Result<usize, Failure> {
        match self {
            Self::Expression => parameters.replace(QUERY, |query| rewriter.expression(query)),
            Self::Selectors => parameters.replace(MATCH, |selector| rewriter.selector(selector)),
            Self::Neutral => Ok(0),
        }
    }

    /// Adds what names the series that may be seen, where nothing named any.
    pub(super) fn add(self, parameters: &mut Parameters, labels: &Labels) -> Result<(), Failure> {
        match self {
            Self::Expression => return Err(bad_request("the parameter query is missing")),
            Self::Selectors => parameters.push(MATCH, &Rewriter::whole(labels)),
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
