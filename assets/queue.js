// Tells the server that the queue is another than the one drawn here: some other window changed it.
addEventListener('finetune-queue', ({detail}) => {
  const drawn = element.querySelector('[data-queue]');
  if (drawn && drawn.dataset.queue !== detail) trigger('submit');
});
// Other files may have been dropped in another window.
addEventListener('visibilitychange', () => document.hidden || trigger('select', {}));
