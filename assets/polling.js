// Asks the server at intervals while an answer is awaited and the element is visible. The value is
// what the server said last: `+name` begins a wait, `-name` ends that wait, and `+` alone is a wait
// without an end. `submit` asks, with the wait's name; Gradio sends one question at a time.
let awaited = '';
const update = () => {
  const value = String(props.value || '');
  if (value[0] === '+') awaited = value;
  else if (value.slice(1) === awaited.slice(1)) awaited = '';
};
watch('value', update);
update();
setInterval(() => {
  if (awaited && !document.hidden && element.offsetParent) trigger('submit', {wait: awaited});
}, INTERVAL);
