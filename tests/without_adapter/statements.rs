//! The statements of a shader function.

use naga::{Block, Span, Statement};

/// The statements of `block` and of the blocks in it, in the order of the text, and where each stands.
pub fn statements(block: &Block) -> Vec<(&Statement, Span)> {
    let mut all = Vec::new();
    add(block, &mut all);
    all
}

fn add<'a>(block: &'a Block, all: &mut Vec<(&'a Statement, Span)>) {
    for (statement, span) in block.span_iter() {
        all.push((statement, *span));
        match statement {
            Statement::Block(inner) => add(inner, all),
            Statement::If { accept: one, reject: other, .. }
            | Statement::Loop { body: one, continuing: other, .. } => {
                add(one, all);
                add(other, all);
            }
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| add(&case.body, all)),
            _ => {}
        }
    }
}
