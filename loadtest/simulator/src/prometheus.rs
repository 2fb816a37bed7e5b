//! A simulated Prometheus: its HTTP API over a few generated series, without a PromQL engine.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use self::expression::{Expression, Selector};
use self::moments::{Range, duration, moment};
use self::series::Series;
use super::clock;
use super::request::{ApiRequest, Query};
use super::response::{self, ApiResponse};

mod expression;
mod moments;
mod series;

/// The path prefix of the API on the server of the simulator.
pub(crate) const PREFIX: &str = "/prometheus";

/// Handles a request below [`PREFIX`].
pub(crate) async fn answer(mut call: ApiRequest, path: &str) -> ApiResponse {
    match *call.request.method() {
        Method::GET => {}
        Method::POST => match call.body().await {
            Ok(body) => call.query.extend(Query::parse(&String::from_utf8_lossy(&body))),
            Err(failure) => return refuse(failure.code, &QueryError::bad_data(failure)),
        },
        _ => return response::text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n"),
    }
    let query = &call.query;
    let data = match path {
        "/-/healthy" | "/-/ready" => {
            return response::text(StatusCode::OK, "This Prometheus is simulated.\n");
        }
        "/api/v1/query" => instant(query),
        "/api/v1/query_range" => range(query),
        "/api/v1/series" => matching(query, true).map(|found| found.iter().map(Series::metric).collect()),
        "/api/v1/labels" => matching(query, false).map(|found| names(&found)),
        "/api/v1/metadata" => Ok(series::metadata()),
        "/api/v1/status/buildinfo" => Ok(build_information()),
        path => match label_of(path) {
            Some(label) => matching(query, false).map(|found| values(&found, label)),
            None => return response::text(StatusCode::NOT_FOUND, "404 page not found\n"),
        },
    };
    match data {
        Ok(data) => response::json(StatusCode::OK, &json!({ "status": "success", "data": data })),
        Err(refusal) => refuse(refusal.code(), &refusal),
    }
}

/// The error of a query.
#[derive(Debug)]
enum QueryError {
    /// The request is invalid.
    BadData(String),
    /// The expression is not supported here.
    Execution(String),
}

impl QueryError {
    fn bad_data(message: impl ToString) -> Self {
        Self::BadData(message.to_string())
    }

    /// Returns the error for an invalid parameter.
    fn parameter(name: &str, why: &str) -> Self {
        Self::BadData(format!("invalid parameter \"{name}\": {why}"))
    }

    fn code(&self) -> StatusCode {
        match self {
            Self::BadData(_) => StatusCode::BAD_REQUEST,
            Self::Execution(_) => StatusCode::UNPROCESSABLE_ENTITY,
        }
    }
}

fn refuse(code: StatusCode, refusal: &QueryError) -> ApiResponse {
    let (kind, message) = match refusal {
        QueryError::BadData(message) => ("bad_data", message),
        QueryError::Execution(message) => ("execution", message),
    };
    response::json(code, &json!({ "status": "error", "errorType": kind, "error": message }))
}

fn instant(query: &Query) -> Result<Value, QueryError> {
    let time = moment(query, "time")?.unwrap_or_else(clock::now);
    Ok(match expression(query)? {
        Expression::Scalar(value) => json!({ "resultType": "scalar", "result": sample(time, value) }),
        Expression::Vector(value) => {
            let element = json!({ "metric": {}, "value": sample(time, value) });
            json!({ "resultType": "vector", "result": [element] })
        }
        Expression::Selector(selector) => {
            let element = |series: &Series| json!({ "metric": series.metric(), "value": sample(time, series.at(time)) });
            let result: Vec<Value> = selected(&selector).iter().map(element).collect();
            json!({ "resultType": "vector", "result": result })
        }
    })
}

fn range(query: &Query) -> Result<Value, QueryError> {
    let range = Range::from_query(query)?;
    let constant = |value| {
        let values: Vec<Value> = range.times().map(|time| sample(time, value)).collect();
        vec![json!({ "metric": {}, "values": values })]
    };
    let result = match expression(query)? {
        Expression::Scalar(value) | Expression::Vector(value) => constant(value),
        Expression::Selector(selector) => {
            let element = |series: &Series| {
                let values: Vec<Value> = range.times().map(|time| sample(time, series.at(time))).collect();
                json!({ "metric": series.metric(), "values": values })
            };
            selected(&selector).iter().map(element).collect()
        }
    };
    Ok(json!({ "resultType": "matrix", "result": result }))
}

fn expression(query: &Query) -> Result<Expression, QueryError> {
    let text = query.get("query").unwrap_or_default().trim();
    if text.is_empty() {
        return Err(QueryError::parameter(
            "query",
            "unknown position: parse error: no expression found in input",
        ));
    }
    if let Some(timeout) = query.get("timeout") {
        duration(timeout).ok_or_else(|| QueryError::parameter("timeout", "not a duration"))?;
    }
    Expression::parse(text).ok_or_else(|| {
        let why = "this is a simulator without a PromQL engine: it knows arithmetic on literals, vector(), \
            and selectors with = and !=";
        QueryError::Execution(why.to_owned())
    })
}

/// Returns the series that any `match[]` selects, or all series if there is no `match[]`.
///
/// With `required`, a missing `match[]` is an error.
fn matching(query: &Query, required: bool) -> Result<Vec<Series>, QueryError> {
    moment(query, "start")?;
    moment(query, "end")?;
    let mut selectors = Vec::new();
    for text in query.all("match[]") {
        let selector = Selector::parse(text);
        selectors.push(
            selector.ok_or_else(|| QueryError::parameter("match[]", "not a selector the simulator knows"))?,
        );
    }
    if required && selectors.is_empty() {
        return Err(QueryError::bad_data("no match[] parameter provided"));
    }
    let all = series::all().into_iter();
    Ok(all
        .filter(|series| selectors.is_empty() || selectors.iter().any(|selector| selector.matches(series)))
        .collect())
}

fn selected(selector: &Selector) -> Vec<Series> {
    series::all().into_iter().filter(|series| selector.matches(series)).collect()
}

fn names(found: &[Series]) -> Value {
    sorted(found.iter().flat_map(|series| series.labels()).map(|(name, _)| name).collect())
}

fn values(found: &[Series], label: &str) -> Value {
    sorted(found.iter().filter_map(|series| series.label(label)).collect())
}

fn sorted(mut texts: Vec<&str>) -> Value {
    texts.sort_unstable();
    texts.dedup();
    json!(texts)
}

/// Returns the label in `/api/v1/label/<name>/values`.
fn label_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/label/")?.strip_suffix("/values").filter(|label| !label.contains('/'))
}

fn sample(time: f64, value: f64) -> Value {
    let value = match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    };
    json!([(time * 1000.0).round() / 1000.0, value])
}

fn build_information() -> Value {
    json!({
        "version": "3.0.0-simulated",
        "revision": "simulated",
        "branch": "simulated",
        "buildUser": "",
        "buildDate": "",
        "goVersion": "none: a simulation written in Rust",
    })
}
