// For HTML with controls in it: Gradio changes the elements that are there one by one, so a box that
// somebody has used would go on showing what was chosen for another row.
watch('value', () => {
  for (const box of element.querySelectorAll('select')) {
    const drawn = box.querySelector('option[selected]') ?? box.options[0];
    if (drawn && !drawn.selected) drawn.selected = true;
  }
  for (const box of element.querySelectorAll('input[type=range]')) {
    if (box.value !== box.defaultValue) box.value = box.defaultValue;
  }
});
