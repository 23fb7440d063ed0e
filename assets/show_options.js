// On a phone, where the options of what a click starts lie below the form, scrolls to them.
() => {
  if (!matchMedia('(max-width: 740px)').matches) return;
  const options = '#grid, #several, #search';
  setTimeout(() => {
    const shown = [...document.querySelectorAll(options)].find((part) => part.offsetHeight);
    shown?.scrollIntoView({block: 'start'});
  }, 200);
}
