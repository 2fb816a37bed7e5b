//! The PromQL that Prometheus understands and tenants may send: each query has the same result with and without its rewriting.

use std::collections::BTreeMap;

use promql::{Labels, Rewriter};
use request_info::prometheus::SeriesLabels;
use serde_json::Value;

use crate::support::{Prometheus, curl};

/// Queries, one on each line.
const QUERIES: &str = include_str!("promql.txt");

fn result(prometheus: &Prometheus, query: &str) -> Option<Value> {
    let (query, time) = (format!("query={query}"), format!("time={}", prometheus.time));
    let url = format!("{}/api/v1/query", prometheus.url);
    let response = curl(&["--data-urlencode", &query, "--data-urlencode", &time, &url]);
    let mut data = (response.status == 200).then(|| response.json()["data"].clone())?;
    // Prometheus returns the series of some functions, such as histogram_quantile, in any order.
    if let Some(series) = data["result"].as_array_mut() {
        series.sort_by_key(Value::to_string);
    }
    Some(data)
}

/// Prometheus scrapes itself only, so that all of its series have the label of the tenant.
#[test]
fn query_that_prometheus_accepts_has_the_same_result_for_a_tenant() {
    let Some(prometheus) = Prometheus::or_skip() else { return };
    let labels = BTreeMap::from([("job".to_owned(), vec!["self".to_owned()])]);
    let labels = Labels::new(&SeriesLabels::new(labels).unwrap()).unwrap();
    let (mut compared, mut wrong) = (0, Vec::new());
    for query in QUERIES.lines() {
        // A newer Prometheus understands more.
        let Some(expected) = result(&prometheus, query) else { continue };
        match Rewriter::new(&labels).expression(query) {
            Ok(rewritten) => {
                let actual = result(&prometheus, &rewritten);
                if actual.as_ref() != Some(&expected) {
                    wrong.push(format!("{query}\n  was sent as {rewritten}\n  and has another result"));
                }
            }
            Err(error) => wrong.push(format!("{query}\n  is refused: {error}")),
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 300, "Prometheus accepts {compared} of the queries only");
}
