//! Expressions in the Common Expression Language (CEL), which read an object of the cluster.
//!
//! Objects are untrusted, and an expression runs for each change of one. So the time and the memory of an expression are bounded by what it
//! may contain: no `map`, which lets values grow in a chain, no macro inside another one, no regular expressions; and by the size of the
//! object.

use std::{
    fmt,
    sync::{Arc, LazyLock},
    thread,
};

use cel::{
    Context, Env, Program, Value,
    common::ast::{Expr, IdedExpr, operators},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest expression, in bytes.
const MAX_LENGTH: usize = 1024;
/// The variable that is the object.
const OBJECT: &str = "object";
/// The most additions. Each may copy a text of the object.
const MAX_ADDITIONS: usize = 8;
/// The most levels. The interpreter calls itself for each one.
const MAX_DEPTH: usize = 32;
/// The largest object: `filter` with `in` takes the square of a list, and `==` in it the product with everything.
const MAX_OBJECT: ObjectBudget = ObjectBudget { values: 5000, bytes: 128 << 10 };
/// The most elements of a list of an object.
const MAX_LIST: usize = 500;
/// The stack of the parser, of which the longest text needs a fraction.
const PARSER_STACK: usize = 32 << 20;
/// The functions, apart from operators and macros.
const FUNCTIONS: [&str; 12] = [
    "bool",
    "contains",
    "double",
    "endsWith",
    "hasValue",
    "int",
    "or",
    "orValue",
    "size",
    "startsWith",
    "string",
    "value",
];

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// An expression of CEL with the variable `object`.
#[derive(Clone)]
pub struct Expression {
    text: String,
    program: Arc<Program>,
}

/// A text that is no expression, or one that agentk does not run. Its author mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts of the errors document them")]
pub enum ExpressionError {
    #[error("an expression has at most {MAX_LENGTH} bytes")]
    TooLong,
    /// The text is not CEL, in the words of the parser.
    #[error("{0}")]
    Syntax(String),
    /// The parser has no thread.
    #[error("{0}")]
    Parser(String),
    #[error("it is no expression of CEL")]
    NotCel,
    #[error("an expression has at most {MAX_DEPTH} levels")]
    TooDeep,
    #[error("there is no variable {0}: the only one is {OBJECT}")]
    UnknownVariable(String),
    #[error("there is no function {0}: there are {known}", known = FUNCTIONS.join(", "))]
    UnknownFunction(String),
    #[error("an expression has at most {MAX_ADDITIONS} additions")]
    TooManyAdditions,
    #[error("the macro map cannot be used here")]
    Map,
    #[error("all, exists, exists_one and filter cannot be used inside one another")]
    NestedMacro,
    #[error("an expression has no maps and no messages")]
    Literal,
}

/// An object for which an expression has no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The object is larger than the limits of expressions.
    #[error(
        "the object is too large for an expression: at most {} values with {} bytes, and {MAX_LIST} in one list",
        MAX_OBJECT.values,
        MAX_OBJECT.bytes
    )]
    TooLarge,
    /// The object cannot be a value of CEL.
    #[error("{0}")]
    Object(String),
    /// The expression fails, for example because the object does not have a field.
    #[error("{0}")]
    Execution(String),
    /// The value is of another type.
    #[error("the value is of the type {0}, and not a text")]
    NotText(String),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// The text is no expression, is longer than 1,024 bytes, has a variable other than `object`, or could need too much time or memory.
    pub fn parse(text: &str) -> Result<Self, ExpressionError> {
        if text.len() > MAX_LENGTH {
            return Err(ExpressionError::TooLong);
        }
        // The parser calls itself for each level of the text, and overflows the stack of a usual thread.
        let parsed = thread::scope(|scope| {
            let parser =
                thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, || compile(text));
            let parser = parser.map_err(|error| ExpressionError::Parser(error.to_string()))?;
            parser.join().map_err(|_| ExpressionError::NotCel)?
        });
        Ok(Self { text: text.to_owned(), program: Arc::new(parsed?) })
    }

    /// Evaluates the expression, whose value must be a text.
    ///
    /// # Errors
    ///
    /// The object does not have a field that the expression reads, or is too large, or the value is no text.
    pub fn text(&self, object: &serde_json::Value) -> Result<String, EvaluationError> {
        let mut budget = MAX_OBJECT;
        if !fits(object, &mut budget) {
            return Err(EvaluationError::TooLarge);
        }
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.add_variable(OBJECT, object).map_err(|error| EvaluationError::Object(error.to_string()))?;
        let value = self.program.execute(&context);
        match value.map_err(|error| EvaluationError::Execution(error.to_string()))? {
            Value::String(text) => Ok(text.to_string()),
            other => Err(EvaluationError::NotText(other.type_of().to_string())),
        }
    }
}

/// The values and bytes that an object may still have.
#[derive(Clone, Copy)]
struct ObjectBudget {
    values: usize,
    bytes: usize,
}

/// Takes a value from the budget. Returns whether there is enough.
fn fits(value: &serde_json::Value, budget: &mut ObjectBudget) -> bool {
    let mut take = |bytes: usize| {
        let left = budget.values.checked_sub(1).zip(budget.bytes.checked_sub(bytes));
        left.map(|(values, bytes)| *budget = ObjectBudget { values, bytes }).is_some()
    };
    match value {
        serde_json::Value::String(text) => take(text.len()),
        serde_json::Value::Array(list) => {
            list.len() <= MAX_LIST && take(0) && list.iter().all(|element| fits(element, budget))
        }
        serde_json::Value::Object(fields) => {
            take(fields.keys().map(String::len).sum()) && fields.values().all(|field| fits(field, budget))
        }
        _ => take(0),
    }
}

fn compile(text: &str) -> Result<Program, ExpressionError> {
    let program = ENVIRONMENT.compile(text).map_err(|errors| {
        let text = errors.to_string();
        let line = text.lines().find(|line| !line.is_empty());
        line.map_or(ExpressionError::NotCel, |line| ExpressionError::Syntax(line.to_owned()))
    })?;
    check(program.expression(), MacroScope::Outside, &mut Counts::default())?;
    Ok(program)
}

/// The number of additions in an expression, and the current depth.
#[derive(Default)]
struct Counts {
    additions: usize,
    depth: usize,
}

/// The surroundings of a part of an expression.
#[derive(Clone, Copy)]
enum MacroScope<'a> {
    Outside,
    /// In the loop of a macro with these variables: that of each element, and that of the result.
    Loop([&'a str; 2]),
}

/// Checks an expression.
fn check(expression: &IdedExpr, place: MacroScope<'_>, counts: &mut Counts) -> Result<(), ExpressionError> {
    counts.depth += 1;
    if counts.depth > MAX_DEPTH {
        return Err(ExpressionError::TooDeep);
    }
    let parts: Vec<&IdedExpr> = match &expression.expr {
        Expr::Literal(_) => Vec::new(),
        Expr::Ident(name) => {
            let known = matches!(place, MacroScope::Loop(variables) if variables.contains(&&**name));
            if !known && name != OBJECT {
                return Err(ExpressionError::UnknownVariable(name.clone()));
            }
            Vec::new()
        }
        Expr::Call(call) => {
            let name = &*call.func_name;
            let is_operator = name.contains(|c: char| !c.is_alphanumeric());
            if !is_operator && !FUNCTIONS.contains(&name) {
                return Err(ExpressionError::UnknownFunction(name.to_owned()));
            }
            counts.additions += usize::from(name == operators::ADD);
            if counts.additions > MAX_ADDITIONS {
                return Err(ExpressionError::TooManyAdditions);
            }
            if let (MacroScope::Loop([element, result]), operators::ADD, [accumulated, added]) =
                (place, name, &*call.args)
                && matches!(&accumulated.expr, Expr::Ident(name) if name == result)
                && let Expr::List(added) = &added.expr
                && !matches!(&*added.elements, [IdedExpr { expr: Expr::Ident(name), .. }] if name == element)
            {
                return Err(ExpressionError::Map);
            }
            call.target.as_deref().into_iter().chain(&call.args).collect()
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Comprehension(found) => {
            if let MacroScope::Loop(_) = place {
                return Err(ExpressionError::NestedMacro);
            }
            let inner = MacroScope::Loop([&found.iter_var, &found.accu_var]);
            for part in [&found.accu_init, &found.loop_cond, &found.loop_step, &found.result] {
                check(part, inner, counts)?;
            }
            vec![&found.iter_range]
        }
        Expr::Unspecified | Expr::Map(_) | Expr::Struct(_) => {
            return Err(ExpressionError::Literal);
        }
    };
    parts.into_iter().try_for_each(|part| check(part, place, counts))?;
    counts.depth -= 1;
    Ok(())
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(expression: &str) -> Result<String, EvaluationError> {
        let object = json!({
            "metadata": {"name": "db"},
            "spec": {"replicas": 3},
            "status": {"phase": "Ready", "ready": 2, "conditions": [
                {"type": "Backup", "status": "False", "message": "no disk"},
                {"type": "Ready", "status": "True", "message": ""},
            ]},
        });
        Expression::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}")).text(&object)
    }

    #[test]
    fn expression_reads_the_object() {
        for (expression, expected) in [
            ("'healthy'", "healthy"),
            ("object.status.phase == 'Ready' ? 'healthy' : 'degraded'", "healthy"),
            ("object.status.ready < object.spec.replicas ? 'progressing' : 'healthy'", "progressing"),
            ("has(object.status.nothing) ? 'healthy' : 'unknown'", "unknown"),
            ("object.?status.?nothing.orValue('none')", "none"),
            ("object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True') ? 'a' : 'b'", "a"),
            ("object.status.conditions.filter(c, c.type == 'Backup')[0].message", "no disk"),
            ("object.status.conditions.exists_one(c, c.status == 'True') ? 'a' : 'b'", "a"),
            ("string(object.status.ready) + ' of ' + string(object.spec.replicas)", "2 of 3"),
            ("object.metadata.name.startsWith('d') && size(object.status) == 3 ? 'a' : 'b'", "a"),
        ] {
            assert_eq!(text(expression), Ok(expected.to_owned()), "{expression}");
        }
    }

    #[test]
    fn missing_field_and_other_type_are_errors() {
        for (expression, expected) in [
            ("object.status.nothing", "nothing"),
            ("object.status.ready", "int"),
            ("object.status.conditions[7].type", "7"),
            ("object.metadata.name + 1", ""),
            ("string(object.spec.replicas * 9223372036854775807)", ""),
        ] {
            let error = text(expression).unwrap_err().to_string();
            assert!(error.contains(expected), "{expression}: {error}");
        }
    }

    #[test]
    fn costly_and_wrong_expressions_are_refused() {
        let long = format!("'{}'", "x".repeat(MAX_LENGTH));
        let deep = format!("{}1{}", "(".repeat(400), ")".repeat(400));
        let grows = format!("'a'{}", " + object.a".repeat(9));
        for (expression, expected) in [
            ("object.a.map(x, x)[0] == '' ? 'a' : 'b'", ""),
            ("object.a.map(x, x + x).map(x, x + x)[0]", "map cannot be used"),
            ("object.a.map(x, has(x.b), [x])[0]", "map cannot be used"),
            ("object.a.all(x, object.a.all(y, x == y)) ? 'a' : 'b'", "inside one another"),
            ("object.a.filter(x, x.filter(y, y == 1) == [])[0]", "inside one another"),
            ("pod.name", "no variable pod"),
            ("object.name.matches('a*') ? 'a' : 'b'", "no function matches"),
            ("object.name.lowerAscii()", "no function lowerAscii"),
            ("{'a': object}.a", "no maps"),
            ("object.status.phase ==", ""),
            ("", ""),
            (&long, "at most 1024 bytes"),
            (&deep, ""),
            (&grows, "at most 8 additions"),
        ] {
            match Expression::parse(expression) {
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(expected) && !error.contains('\n'), "{expression}: {error}");
                }
                // The identity copies nothing.
                Ok(_) => assert_eq!(expected, "", "{expression}"),
            }
        }
        for expression in ["object.status.phase ==", "", &*deep] {
            assert!(Expression::parse(expression).is_err(), "{expression}");
        }
    }

    /// A panic would end the load of the graph.
    #[test]
    fn no_value_of_an_object_panics() {
        let numbers = [
            "0",
            "-1",
            "1",
            "9223372036854775807",
            "-9223372036854775808",
            "1.5",
            "1e308",
            "-0.0",
            "0u",
            "18446744073709551615u",
        ];
        let texts = [
            "''",
            "'é'",
            "'\\u202e'",
            "object.long",
            "object.none",
            "object.list",
            "object.list[-1]",
            "object.list[99]",
            "object.map",
            "object",
        ];
        let object = json!({"long": "é".repeat(60_000), "none": null, "list": [1, "a", {}], "map": {"a": 1.5, "b": u64::MAX, "c": i64::MIN}});
        let mut tried = 0;
        let mut attempt = |text: &str| {
            if let Ok(expression) = Expression::parse(text) {
                let _ = expression.text(&object);
                tried += 1;
            }
        };
        for one in numbers.iter().chain(&texts) {
            for function in ["int", "double", "string", "bool", "size", "-", "!"] {
                attempt(&format!("string({function}({one}))"));
            }
            for method in
                ["contains", "startsWith", "endsWith", "exists(x, x)", "filter(x, x == 1)", "orValue"]
            {
                attempt(&format!(
                    "string(({one}).{method}{})",
                    if method.contains('(') { "" } else { "('é')" }
                ));
            }
            for other in numbers.iter().chain(&texts) {
                for operator in ["+", "-", "*", "/", "%", "<", "==", "in", "&&", "||"] {
                    attempt(&format!("string(({one}) {operator} ({other}))"));
                }
                attempt(&format!("string(({one})[{other}])"));
                attempt(&format!("({one}) ? ({other}) : 'x'"));
            }
        }
        assert!(tried > 2000, "{tried}");
    }

    #[test]
    fn object_that_makes_expressions_slow_is_refused() {
        let same =
            Expression::parse("object.list.filter(x, x in object.list).size() > 0 ? 'a' : 'b'").unwrap();
        let list = |elements: usize| json!({"list": vec!["x"; elements]});
        assert_eq!(same.text(&list(MAX_LIST)), Ok("a".to_owned()));
        for large in [
            list(MAX_LIST + 1),
            json!({"list": [], "text": "x".repeat(200 << 10)}),
            json!({"list": [], "lists": vec![vec![1; 400]; 400]}),
            json!({"list": [], "x".repeat(200 << 10): 1}),
        ] {
            assert!(matches!(same.text(&large), Err(EvaluationError::TooLarge)));
        }
    }

    /// The parser and the interpreter call themselves for each level.
    #[test]
    fn deep_expressions_do_not_overflow_the_stack() {
        for (open, close) in
            [("(", ")"), ("[", "]"), ("!", ""), ("-", ""), ("true ? 1 : ", ""), ("{1:", "}"), ("1+", "")]
        {
            let times = MAX_LENGTH / (open.len() + close.len()) - 4;
            let text = format!("{}1{}", open.repeat(times), close.repeat(times));
            if let Ok(expression) = Expression::parse(&text) {
                let _ = expression.text(&json!({}));
            }
        }
        for part in [".a", "[0]", "==1", "&&true", ".size()"] {
            let text = format!("object{}", part.repeat((MAX_LENGTH - 6) / part.len()));
            if let Ok(expression) = Expression::parse(&text) {
                let _ = expression.text(&json!({}));
            }
        }
    }
}
