-- KEYS: open. ARGV: lease in microseconds, ids. Gives the places of the ids that
-- are not there, from 1: their leases were over, or the server has lost them.
local gone = {}
for i = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[i])
  else
    gone[#gone + 1] = i - 1
  end
end
return gone
