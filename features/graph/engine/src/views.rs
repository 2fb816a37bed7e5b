//! Views: the counts and tables that the configuration of the agent defines.

use std::collections::BTreeMap;

use proto::{
    agent_configuration::graph::{Column, ViewDefinition},
    graph::View,
};

use crate::{access::Access, entry::Entry, graph::Graph, query::Query, text::cut, time};

/// The most rows of a view.
const MAX_ROWS: usize = 100;
/// The longest text of a cell, in bytes.
const MAX_CELL: usize = 128;
/// The most bytes of all cells of one agent. kas keeps them for each agent.
const MAX_BYTES: usize = 128 << 10;
/// The bytes of a cell beside its text: quotes and a comma.
const CELL_OVERHEAD: usize = 4;

impl Graph {
    /// Computes views of the objects that somebody may see.
    pub fn views(&self, definitions: &[ViewDefinition], access: &Access) -> Vec<View> {
        let mut budget = MAX_BYTES;
        definitions.iter().map(|definition| self.compute(definition, access, &mut budget)).collect()
    }

    fn compute(&self, definition: &ViewDefinition, access: &Access, budget: &mut usize) -> View {
        let query = Query::of_view(definition);
        let name = definition.name.clone();
        if query.check(self).is_err() {
            let kind = definition.kind().map(ToString::to_string).unwrap_or_default();
            let partial = vec![format!("{kind}: the API server has no such kind")];
            return View { name, partial, ..View::default() };
        }
        let selected = self.select(&query, access);
        let row = |slot: &u32| -> Vec<String> {
            definition.columns.iter().map(|column| cell(self.entry(*slot), column)).collect()
        };
        let rows = selected.iter().map(row);
        let rows: Vec<_> = if definition.table.is_some() { rows.collect() } else { counted(rows) };
        let mut columns: Vec<String> = definition.columns.iter().cloned().map(String::from).collect();
        if definition.table.is_none() && !columns.is_empty() {
            columns.push("count".to_owned());
        }
        let all = rows.len();
        let mut fits = |row: &Vec<String>| {
            let size = row.iter().map(|cell| cell.len() + CELL_OVERHEAD).sum();
            let left = budget.checked_sub(size);
            *budget = left.unwrap_or(0);
            left.is_some()
        };
        let rows: Vec<_> = rows.into_iter().take(MAX_ROWS).take_while(|row| fits(row)).collect();
        View {
            name,
            count: selected.len() as u64,
            columns,
            omitted: (all - rows.len()) as u64,
            rows,
            partial: self.partial(&query, access),
        }
    }
}

/// Returns each different row once, with its number. Without columns, there are none.
fn counted(rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let mut counts = BTreeMap::<Vec<String>, u64>::new();
    for row in rows.filter(|row| !row.is_empty()) {
        *counts.entry(row).or_default() += 1;
    }
    let with_count = |(mut row, count): (Vec<String>, u64)| {
        row.push(count.to_string());
        row
    };
    counts.into_iter().map(with_count).collect()
}

/// Returns the text of a cell.
fn cell(entry: &Entry, column: &Column) -> String {
    let facts = &entry.facts;
    let text = match column {
        Column::Namespace => facts.namespace.to_string(),
        Column::Name => facts.name.to_string(),
        Column::Status => facts.status.to_string(),
        Column::Ready => facts.ready.map(|it| format!("{}/{}", it.ready, it.desired)).unwrap_or_default(),
        Column::Restarts => facts.restarts.to_string(),
        Column::Health => facts.health.to_string(),
        Column::Message => facts.message.to_string(),
        Column::Created => time::text(facts.created),
        Column::Images => facts.images.join(", "),
        Column::Label(key) => facts.label(key).unwrap_or_default().to_owned(),
        Column::Detail(key) => {
            let detail = facts.details.iter().find(|detail| detail.0 == key);
            detail.map(|detail| detail.1.to_string()).unwrap_or_default()
        }
    };
    cut(&text, MAX_CELL).to_owned()
}
