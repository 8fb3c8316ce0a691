/// The name of the test that a closure is in, as test binaries take it with `--exact`.
///
/// # Panics
/// If the type is that of something else.
pub fn test_name<F>(_: &F) -> &'static str {
    // `program::module::test::{{closure}}`; threads are not always named after their tests.
    std::any::type_name::<F>()
        .split_once("::{{closure}}")
        .and_then(|(path, _)| path.split_once("::"))
        .map(|(_, test)| test)
        .expect("the body is a closure in a test")
}
